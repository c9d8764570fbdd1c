"""Head and tail of streams."""

from hypothesis import given
from hypothesis import strategies as st

from swe_rl.sandbox.base import HeadTail


@given(st.lists(st.binary(max_size=50)), st.integers(2, 60))
def test_nothing_is_lost_up_to_the_limit_and_the_gap_is_counted(chunks: list[bytes], limit: int):
    output = HeadTail(limit)
    for chunk in chunks:
        output.feed(chunk)
    data = b"".join(chunks)
    assert output.truncated_bytes == max(0, len(data) - limit)
    if len(data) <= limit:
        assert output.text() == data.decode("utf-8", "replace")


@given(st.text(min_size=1), st.integers(2, 40))
def test_valid_text_is_never_garbled_by_the_gap(text: str, limit: int):
    output = HeadTail(limit)
    output.feed(text.encode())
    if not output.truncated_bytes:
        assert output.text() == text
        return
    head, tail = output.text().split(f"\n... [{output.truncated_bytes} bytes left out] ...\n")
    assert text.startswith(head) and text.endswith(tail)
    assert len(head.encode()) > limit // 2 - 4 and len(tail.encode()) > limit - limit // 2 - 4


def test_memory_is_bounded():
    output = HeadTail(1000)
    for _ in range(1000):
        output.feed(b"x" * 999)
        assert len(output._head) + len(output._tail) <= 3000
    assert output.truncated_bytes == 998_000
