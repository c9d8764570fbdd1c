"""Head and tail of a byte stream of any length, in bounded memory.

Invariants:
- At most `3 * limit_bytes` are held, however much is fed.
- Up to `limit_bytes` nothing is lost; beyond it the middle is left out and a marker line says how many bytes.
- `text()` never raises: invalid UTF-8 becomes U+FFFD, and a character cut by the gap is dropped, not garbled.
"""

import codecs


class HeadTail:
    """Collects a stream; the first half of the limit is kept from its start, the second half from its end."""

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 2:
            raise ValueError(f"limit_bytes must be at least 2, not {limit_bytes}")
        self._head_bytes = limit_bytes // 2
        self._tail_bytes = limit_bytes - self._head_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._total_bytes = 0

    def feed(self, data: bytes) -> None:
        self._total_bytes += len(data)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if len(data) >= self._tail_bytes:
            self._tail[:] = data[len(data) - self._tail_bytes :]
            return
        self._tail += data
        if len(self._tail) > 2 * self._tail_bytes:  # trimmed now and then only, so that feeding stays linear
            del self._tail[: len(self._tail) - self._tail_bytes]

    @property
    def truncated_bytes(self) -> int:
        return max(0, self._total_bytes - self._head_bytes - self._tail_bytes)

    def text(self) -> str:
        if not self.truncated_bytes:
            return bytes(self._head + self._tail).decode("utf-8", "replace")
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._head))  # a cut end stays inside it
        tail = _without_cut_start(bytes(self._tail[-self._tail_bytes :])).decode("utf-8", "replace")
        return f"{head}\n... [{self.truncated_bytes} bytes left out] ...\n{tail}"


def _without_cut_start(data: bytes) -> bytes:
    """Drops up to three leading continuation bytes: the rest of a character whose start was left out."""
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]
