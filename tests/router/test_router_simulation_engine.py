"""Blocks and one engine, with a speed that makes times easy: a step takes a second, prefill and reads nothing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.plan.engine_speed import EngineSpeed
from swe_rl.router.simulation.blocks import BlockCache, chain_of
from swe_rl.router.simulation.engine_model import EngineLimits, EngineModel, SimulatedRequest
from swe_rl.router.simulation.workload import SimulatedProgram, SimulatedTurn

SECOND = EngineSpeed(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
REAL = EngineSpeed(0.003, 0.01, 0.0, 0.0, 4e-5, 1e-7, 1e-9)
AMPLE = EngineLimits(kv_capacity_tokens=16_000, max_num_seqs=64, max_num_batched_tokens=512)


def request(name, prompt, out, *, group=None, system=0, number=0):
    program = SimulatedProgram(name, group or name, (SimulatedTurn(prompt, out, 0.0),), system_tokens=system)
    return SimulatedRequest(f"{name}#{number}", name, chain_of(program), prompt, out)


def next_turn(name, first_prompt, prompt, out):
    return replace(request(name, first_prompt, out), request_id=f"{name}#{prompt}", prompt_tokens=prompt)


def drive(engine, arrivals=(), now_s=0.0):
    """Runs the engine to its end; arrivals are (time, request). Returns [(time, request id)] in order of finishing."""
    arrivals, done = sorted(arrivals, key=lambda one: one[0]), []
    while arrivals or engine.end_s is not None or engine.load(now_s).waiting:
        if engine.end_s is None and not arrivals:
            engine.start_steps(now_s)
        elif arrivals and (engine.end_s is None or arrivals[0][0] <= engine.end_s):
            now_s, new = arrivals.pop(0)
            engine.submit(new, now_s)
            if engine.end_s is None and not (arrivals and arrivals[0][0] == now_s):
                engine.start_steps(now_s)
        else:
            now_s = engine.end_s
            done += [(now_s, one.request_id) for one in engine.finish_steps()]
            engine.start_steps(now_s)
        cache = engine.cache
        assert cache.free + cache.used + cache.idle == cache.capacity
        assert min(cache.free, cache.used, cache.idle) >= 0
    return done


def test_prefill_in_chunks_then_a_token_a_step():
    engine = EngineModel("e", SECOND, AMPLE)
    assert drive(engine, [(0.0, request("p", 1000, 5))]) == [(6.0, "p#0")]  # 512 + 488, whose end samples, + 4
    assert engine.counts.prefill_tokens == 1000 and engine.counts.sampled_tokens == 5
    assert engine.counts.steps == 6 and engine.counts.busy_s == 6.0


def test_decoding_goes_on_beside_a_prefill_and_an_arrival_waits_for_the_step():
    engine = EngineModel("e", SECOND, AMPLE)
    done = drive(engine, [(0.0, request("p", 16, 10)), (3.5, request("q", 1022, 1))])
    # q starts at 4: 511 beside one decoding sequence, 511 more, and its only token at 6
    assert done == [(6.0, "q#0"), (10.0, "p#0")]


def test_the_next_turn_finds_its_whole_blocks():
    engine = EngineModel("e", SECOND, AMPLE)
    first, second = request("p", 100, 10), next_turn("p", 100, 200, 10)
    drive(engine, [(0.0, first), (50.0, second)])
    assert first.cached_tokens == 0
    assert second.cached_tokens == 96  # 109 tokens were computed: six whole blocks
    assert engine.counts.prefill_tokens == 100 + 200 - 96


def test_the_last_token_is_always_computed():
    engine = EngineModel("e", SECOND, AMPLE)
    drive(engine, [(0.0, request("p", 64, 17))])
    again = next_turn("p", 64, 80, 1)
    drive(engine, [(99.0, again)])
    assert again.cached_tokens == 64  # all 80 are there


def test_siblings_share_a_prompt_even_in_one_step():
    engine = EngineModel("e", SECOND, replace(AMPLE, max_num_batched_tokens=8192))
    siblings = [request(name, 100, 4, group="g", system=40) for name in "abc"]
    stranger = request("d", 100, 4, system=40)
    drive(engine, [(0.0, one) for one in (*siblings, stranger)])
    assert [one.cached_tokens for one in siblings] == [0, 96, 96]
    assert stranger.cached_tokens == 32  # what all share, in whole blocks
    assert engine.counts.prefill_tokens == 100 + 4 + 4 + 68


def test_without_prefix_caching_nothing_is_found_or_kept():
    engine = EngineModel("e", SECOND, replace(AMPLE, prefix_caching=False))
    both = [request(name, 100, 4, group="g", system=40) for name in "ab"]
    drive(engine, [(0.0, both[0]), (0.0, both[1])])
    assert [one.cached_tokens for one in both] == [0, 0]
    assert engine.cache.free == engine.cache.capacity


def test_least_recently_used_goes_first_and_from_its_end():
    engine = EngineModel("e", SECOND, replace(AMPLE, kv_capacity_tokens=320))
    drive(engine, [(0.0, request("a", 127, 2)), (10.0, request("b", 127, 2))])  # 8 of 20 blocks each
    drive(engine, [(20.0, request("c", 127, 2))])  # 4 were free, 4 come from the end of a
    again = [next_turn(name, 127, 127, 1) for name in "ab"]
    drive(engine, [(30.0, again[1])])
    drive(engine, [(40.0, again[0])])
    assert [one.cached_tokens for one in again] == [64, 112]


def test_the_youngest_is_preempted_and_computes_again():
    engine = EngineModel("e", SECOND, replace(AMPLE, kv_capacity_tokens=160))
    old, young = request("old", 60, 60), request("young", 60, 40)
    done = drive(engine, [(0.0, old), (0.0, young)])
    assert [name for _, name in done] == ["old#0", "young#0"]
    assert engine.counts.preemptions == 1
    assert engine.counts.sampled_tokens == 100
    assert engine.counts.recomputed_tokens > 0 == old.cached_tokens
    assert engine.counts.prefill_tokens > 120


def test_no_more_sequences_than_allowed():
    engine = EngineModel("e", SECOND, replace(AMPLE, max_num_seqs=2))
    done = drive(engine, [(0.0, request(name, 16, 4)) for name in "abcd"])
    assert done == [(4.0, "a#0"), (4.0, "b#0"), (8.0, "c#0"), (8.0, "d#0")]


def test_load():
    engine = EngineModel("e", SECOND, AMPLE)
    for name in "ab":
        engine.submit(request(name, 100, 100), 0.0)
    assert engine.load(0.0).waiting == 2
    engine.start_steps(0.0)
    load = engine.load(0.0)
    assert (load.engine, load.running, load.waiting, load.kv_capacity_tokens) == ("e", 2, 0, 16_000)
    assert load.kv_used_tokens == 2 * 112
    engine.finish_steps()
    engine.start_steps(1.0)
    assert engine.load(50.5).kv_used_tokens == 2 * 160  # 149 tokens each: the jump is looked into
    assert engine.load(0.0).preemptions_total == 0


class StepByStep(EngineModel):
    def _longest_jump(self):
        super()._longest_jump()
        return 1


_requests = st.lists(
    st.tuples(
        st.floats(0, 3, allow_nan=False),
        st.integers(1, 300),
        st.integers(1, 120),
        st.sampled_from(["g", "h"]),
        st.sampled_from([0, 20]),
    ),
    min_size=1,
    max_size=12,
)


def made(drawn):
    prompts = {"g": 90, "h": 131}
    return [
        (arrival_s, request(f"p{number}", max(prompts[group], prompt), out, group=f"{group}{prompt}", system=system))
        for number, (arrival_s, prompt, out, group, system) in enumerate(drawn)
    ]


@given(_requests, st.integers(27, 120), st.integers(1, 8), st.sampled_from([32, 100, 512]), st.booleans())
def test_every_request_finishes_once_and_jumps_change_nothing(drawn, blocks, max_num_seqs, batched, caching):
    limits = EngineLimits(blocks * 16, max_num_seqs, batched, caching)
    engine, slow = EngineModel("e", REAL, limits), StepByStep("e", REAL, limits)
    done, slowly = drive(engine, made(drawn)), drive(slow, made(drawn))
    assert sorted(name for _, name in done) == sorted(f"p{number}#0" for number in range(len(drawn)))
    assert [name for _, name in done] == [name for _, name in slowly]
    assert [when for when, _ in done] == pytest.approx([when for when, _ in slowly])
    assert engine.counts.sampled_tokens == sum(one[2] for one in drawn)
    assert replace(engine.counts, busy_s=0.0) == replace(slow.counts, busy_s=0.0)
    assert engine.cache.used == 0 and engine.load(1e9).running == 0
    engine.cache.flush()
    assert engine.cache.free == blocks


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 6), st.booleans()), max_size=60))
def test_blocks_are_conserved(steps):
    cache, held = BlockCache(20), {}
    for name, blocks, give_back in steps:
        if give_back and name in held:
            cache.give_back(held.pop(name))
        elif blocks <= cache.available - cache.idle_blocks((name, "")):
            if name not in held:
                held[name] = cache.hold((name, ""))
            cache.grow(held[name], blocks)
        assert cache.free + cache.used + cache.idle == 20
        assert cache.used == sum(part.resident for part in held.values())
    for part in held.values():
        cache.give_back(part)
    cache.flush()
    assert (cache.free, cache.used, cache.idle) == (20, 0, 0)
