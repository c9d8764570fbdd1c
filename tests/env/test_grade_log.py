"""The end of a grading's log, which a trajectory keeps."""

from swe_rl.env.env import end_of


def test_rulers_take_no_room_of_the_end_of_a_log():
    session = f"{'=' * 80}\n{'words ' * 10}\n{'_' * 30} test_a {'_' * 30}\n"
    kept = end_of(session * 100, chars=2000)
    assert len(kept) == 2000 and kept.count("words") > 1.5 * (session * 100)[-2000:].count("words")
    assert end_of("=" * 21) == "=" * 20 == end_of("=" * 20)
    assert end_of("a" * 50) == "a" * 50, "no ruler"
