"""The engine's contract: what is sampled, and that timing, order and company do not change it."""

import asyncio
import random

import pytest
import torch

from swe_rl.engine.engine import ContextOverflowError, EngineError, SamplingParams


def plain_logprobs(model, prompt, token_ids, temperature=1.0):
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *token_ids]])).logits[0, len(prompt) - 1 : -1]
    table = (logits / temperature).log_softmax(-1)
    return table.gather(-1, torch.tensor(token_ids)[:, None])[:, 0].tolist()


async def test_logprobs_equal_a_plain_forward(engine, model, prompt_of):
    prompts = [prompt_of(i, 20 + 11 * i) for i in range(6)]
    temperatures = (0.6, 1.0, 1.3, 1.0, 0.8, 1.0)
    completions = await asyncio.gather(
        *(
            engine.generate(prompt, SamplingParams(40, temperature=t, seed=i), request_id=str(i))
            for i, (prompt, t) in enumerate(zip(prompts, temperatures, strict=True))
        )
    )
    for prompt, temperature, done in zip(prompts, temperatures, completions, strict=True):
        assert len(done.token_ids) == 40 and done.finish_reason == "length"
        assert done.logprobs == pytest.approx(plain_logprobs(model, prompt, done.token_ids, temperature), abs=2e-5)


async def test_greedy_equals_generate(engine, model, prompt_of):
    prompts = [prompt_of(i, 10 + 30 * i) for i in range(4)]
    params = SamplingParams(25, temperature=0.0)
    completions = await asyncio.gather(*(engine.generate(p, params, request_id=str(i)) for i, p in enumerate(prompts)))
    for prompt, done in zip(prompts, completions, strict=True):
        expected = model.generate(
            torch.tensor([prompt]), max_new_tokens=25, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert list(done.token_ids) == expected[0, len(prompt) :].tolist()
        assert done.logprobs == pytest.approx(plain_logprobs(model, prompt, done.token_ids), abs=2e-5)


async def sample_all(engine, requests, order, rng=None):
    async def one(index):
        prompt, params = requests[index]
        if rng is not None:
            await asyncio.sleep(rng.random() * 0.1)
        return index, await engine.generate(prompt, params, request_id=str(index))

    done = await asyncio.gather(*(one(index) for index in order))
    return {index: (completion.token_ids, completion.logprobs) for index, completion in done}


async def test_order_timing_and_company_change_no_bit(start_engine, prompt_of):
    rng = random.Random(0)
    requests = []
    for i in range(64):
        # Every fourth prompt opens as its neighbours do, as the trajectories of one group do.
        prompt = prompt_of(i // 4, 100) + prompt_of(1000 + i, rng.randrange(5)) if i % 2 else prompt_of(i, 5 + i)
        params = SamplingParams(rng.randrange(5, 30), temperature=rng.choice((0.0, 0.7, 1.0)), top_p=0.95, seed=i)
        requests.append((prompt, params))
    first = await sample_all(await start_engine(max_num_seqs=16), requests, range(64))
    order = rng.sample(range(64), 64)
    second = await sample_all(await start_engine(max_num_seqs=64), requests, order, rng)
    third = await sample_all(await start_engine(max_num_seqs=3), requests, order)
    assert first == second == third


async def test_no_history_of_a_session_changes_a_bit(start_engine, build_model, prompt_of):
    """Long and short contexts side by side, prompts in parts, slots that were given up: three turns of 24 sessions. A
    run that was resumed, or whose programs came in another order, must not compute other log-probabilities.

    Three query heads a key head: one or two are summed by other code of the matrix library.
    """
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 2}
    model = build_model(3, **sizes)

    async def sessions(max_num_seqs, order, rng=None):
        engine = await start_engine(model, max_model_len=512, max_num_seqs=max_num_seqs)

        async def talk(number):
            history, said = prompt_of(number // 4, 20 + 45 * (number // 4)), []
            for turn in range(3):
                if rng is not None:
                    await asyncio.sleep(rng.random() * 0.05)
                params = SamplingParams(5 + (7 * number + turn) % 30, seed=100 * number + turn)
                done = await engine.generate(history, params, request_id=f"{number}-{turn}", session_id=str(number))
                said.append((done.token_ids, done.logprobs))
                history = [*history, *done.token_ids, *prompt_of(1000 + 10 * number + turn, 3 + number)]
            return said

        return dict(zip(order, await asyncio.gather(*map(talk, order)), strict=True))

    rng = random.Random(1)
    together = await sessions(32, range(24))
    assert together == await sessions(32, rng.sample(range(24), 24), rng)
    assert together == await sessions(5, range(24))  # nearly every turn finds its session's slot given up


async def test_seeds_decide_and_unseeded_requests_differ(engine, prompt_of):
    async def tokens(seed, number):
        done = await engine.generate(prompt_of(0, 30), SamplingParams(20, seed=seed), request_id=str(number))
        return done.token_ids

    assert await tokens(5, 0) == await tokens(5, 1)
    assert await tokens(5, 2) != await tokens(6, 3)
    assert await tokens(None, 4) != await tokens(None, 5)
    assert await tokens(-1, 6) == await tokens(2**64 - 1, 7)


async def test_a_session_prefills_only_what_is_new_and_samples_the_same(engine, prompt_of):
    kept, fresh = prompt_of(0, 70), prompt_of(0, 70)
    for turn in range(3):
        params = SamplingParams(15, seed=turn)
        before = engine.stats().prefill_tokens_total
        reused = await engine.generate(kept, params, request_id="a", session_id="s")
        prefilled = engine.stats().prefill_tokens_total - before
        engine.release_session("s2")
        await engine.generate(prompt_of(turn, 3), SamplingParams(1), request_id="x")
        whole = await engine.generate(fresh, params, request_id="b", session_id="s2")
        assert reused.token_ids == whole.token_ids
        assert reused.logprobs == whole.logprobs  # to the bit: what was sampled before is not reused
        assert reused.cached_tokens == (0 if turn == 0 else 70 + 35 * (turn - 1))
        assert prefilled == len(kept) - reused.cached_tokens
        for history in (kept, fresh):
            history += [*reused.token_ids, *prompt_of(50 + turn, 20)]


async def test_equal_prompts_are_prefilled_once(engine, prompt_of):
    prompt = prompt_of(0, 150)
    completions = await asyncio.gather(
        *(engine.generate(prompt, SamplingParams(3, seed=i), request_id=str(i)) for i in range(8))
    )
    assert sorted(c.cached_tokens for c in completions) == [0] + [149] * 7
    assert engine.stats().prefill_tokens_total == 150 + 7


async def test_requests_join_and_leave_a_running_batch(start_engine, prompt_of):
    engine = await start_engine(max_num_seqs=4)
    long = asyncio.ensure_future(engine.generate(prompt_of(0, 20), SamplingParams(200, seed=0), request_id="long"))
    for number in range(12):
        done = await engine.generate(prompt_of(number, 10), SamplingParams(2, seed=1), request_id=f"short{number}")
        assert len(done.token_ids) == 2
        if number == 0:
            assert not long.done()
    assert len((await long).token_ids) == 200


async def test_more_requests_than_slots_wait_their_turn(start_engine, prompt_of):
    engine = await start_engine(max_num_seqs=2)
    completions = await asyncio.gather(
        *(engine.generate(prompt_of(i, 10), SamplingParams(5), request_id=str(i)) for i in range(9))
    )
    assert [len(c.token_ids) for c in completions] == [5] * 9
    assert (engine.stats().running, engine.stats().waiting, engine.stats().kv_used_tokens) == (0, 0, 0)
    assert engine.stats().sampled_tokens_total == 45
    assert completions[-1].queue_s > completions[0].queue_s


async def test_a_stop_token_ends_the_completion_and_is_part_of_it(engine, prompt_of):
    free = await engine.generate(prompt_of(0, 30), SamplingParams(30, seed=4), request_id="free")
    stop = free.token_ids[7]
    first = free.token_ids.index(stop)
    params = SamplingParams(30, seed=4, stop_token_ids=(stop,))
    stopped = await engine.generate(prompt_of(0, 30), params, request_id="stopped")
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert stopped.finish_reason == "stop"


async def test_sampling_ends_where_the_context_ends(engine, prompt_of):
    done = await engine.generate(prompt_of(0, 250), SamplingParams(50), request_id="a")
    assert (len(done.token_ids), done.finish_reason) == (6, "length")
    full = await engine.generate(prompt_of(0, 255), SamplingParams(50), request_id="b")
    assert (len(full.token_ids), full.finish_reason) == (1, "length")
    with pytest.raises(ContextOverflowError, match=r"256 tokens.*max_model_len=256"):
        await engine.generate(prompt_of(0, 256), SamplingParams(1), request_id="c")


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], SamplingParams(1), "prompt is empty"),
        ([1, 128], SamplingParams(1), "outside 0 .. 127"),
        ([1, -1], SamplingParams(1), "outside 0 .. 127"),
        ([1], SamplingParams(0), "max_tokens is 0"),
        ([1], SamplingParams(1, temperature=float("nan")), "temperature is nan"),
        ([1], SamplingParams(1, top_p=0.0), "top_p is 0.0"),
        ([1], SamplingParams(1, top_k=-1), "top_k is -1"),
    ],
)
async def test_what_cannot_be_served_is_refused_without_harm(engine, prompt, params, message):
    with pytest.raises(EngineError, match=message):
        await engine.generate(prompt, params, request_id="bad")
    assert len((await engine.generate([1], SamplingParams(1), request_id="good")).token_ids) == 1
