import numpy as np
import pytest

from swe_rl.engine.embedded.slot_cache import WORTH_A_COPY_TOKENS, CacheShape, SlotCache

LONG = list(range(200))


@pytest.fixture
def cache():
    return SlotCache(CacheShape(slots=3, max_tokens=256, layers=1, kv_heads=1, head_dim=4))


def take(cache, ids, session=None):
    return cache.acquire(np.array(ids, dtype=np.int64), session)


def serve(cache, ids, session=None, sampled=()):
    slot, reused = take(cache, ids, session)
    cache.prefilled(slot, len(ids))
    for token in sampled:
        cache.append(slot, token)
        slot.length += 1
    cache.finish(slot)
    return slot, reused


def test_a_session_continues_on_its_slot_where_its_sampled_tokens_begin(cache):
    """Decoding rounds otherwise than prefilling: a slot that was given up meanwhile would compute other bits."""
    first, reused = serve(cache, [1, 2, 3], "a", sampled=[4, 5])
    assert reused == 0
    second, reused = serve(cache, [1, 2, 3, 4, 5, 6, 7], "a")
    assert (second, reused) == (first, 3)
    assert serve(cache, [1, 2, 3, 4, 5, 6, 7, 8], "a")[1] == 7


def test_a_session_that_rewrites_history_keeps_the_common_part(cache):
    serve(cache, [1, 2, 3, 4, 5], "a")
    assert serve(cache, [1, 2, 9, 9, 9, 9], "a")[1] == 2


def test_the_last_prompt_token_is_always_computed(cache):
    serve(cache, [1, 2, 3], "a")
    assert serve(cache, [1, 2, 3], "a")[1] == 2


def test_others_share_a_prefilled_prefix(cache):
    source, _ = serve(cache, LONG, "a")
    cache.keys[0][source.index] = 7.0
    target, reused = take(cache, [*LONG[:150], 999], "b")
    assert target is not source
    assert reused == 150
    assert bool((cache.keys[0][target.index, :, :reused] == 7.0).all())
    assert bool((cache.keys[0][target.index, :, reused:] == 0.0).all())


def test_a_short_common_beginning_is_worth_no_copy_and_no_wait(cache):
    few = LONG[: WORTH_A_COPY_TOKENS - 1]
    take(cache, LONG, "a")
    assert take(cache, [*few, 999, 998], "b")[1] == 0


def test_sampled_tokens_are_not_shared_with_others(cache):
    serve(cache, LONG[:70], "a", sampled=LONG[70:])
    assert serve(cache, LONG, "b")[1] == 70
    assert serve(cache, [*LONG, 5], "a")[1] == 70


def test_a_prefix_that_is_being_prefilled_is_worth_a_wait(cache):
    slot, _ = take(cache, LONG, "a")
    assert take(cache, LONG, "b") is None
    cache.prefilled(slot, 128)
    assert take(cache, LONG, "b") is None
    cache.prefilled(slot, 200)
    second, reused = take(cache, LONG, "b")
    assert (second is slot, reused) == (False, 199)


def test_an_aborted_prefill_promises_nothing(cache):
    slot, _ = take(cache, LONG, "a")
    cache.prefilled(slot, 64)
    cache.finish(slot)
    assert serve(cache, LONG, "b")[1] == 64


def test_the_least_recently_used_idle_slot_is_given_up(cache):
    for session in "abc":
        serve(cache, [ord(session), 2, 3], session)
    serve(cache, [ord("a"), 2, 3, 4], "a")
    serve(cache, [100, 101], "d")
    assert serve(cache, [ord("b"), 2, 3, 4], "b")[1] == 0
    assert serve(cache, [ord("a"), 2, 3, 4, 5], "a")[1] == 4


def test_no_slot_while_all_run(cache):
    slots = [take(cache, [i, 1], None)[0] for i in range(3)]
    assert take(cache, [9, 9], None) is None
    cache.finish(slots[1])
    assert take(cache, [9, 9], None)[0] is slots[1]


def test_a_second_request_of_a_running_session_gets_a_slot_of_its_own(cache):
    first, _ = take(cache, [1, 2, 3], "a")
    second, reused = take(cache, [1, 2, 3, 4], "a")
    assert (second is first, reused) == (False, 0)


def test_release_frees_at_once_and_unknown_sessions_are_ignored(cache):
    slot, _ = serve(cache, LONG, "a")
    cache.release_session("a")
    cache.release_session("never seen")
    assert slot.length == 0
    assert serve(cache, LONG, "b")[1] == 0


def test_nothing_written_before_an_invalidation_is_reused(cache):
    serve(cache, LONG, "idle")
    running, _ = take(cache, [5, *LONG], "running")
    cache.prefilled(running, 201)
    cache.invalidate()
    assert serve(cache, LONG, "idle")[1] == 0
    assert serve(cache, [5, *LONG], "other")[1] == 0
    cache.finish(running)
    assert running.length == 0


def test_held_tokens_are_those_of_running_requests(cache):
    serve(cache, [1, 2, 3], "a")
    slot, _ = take(cache, [7, 8], "b")
    cache.prefilled(slot, 2)
    assert cache.held_tokens() == 2
