"""A real vLLM server on the tiny model, compared with the embedded engine. Skipped where there is no vLLM.

SWE_RL_VLLM_COMMAND names the interpreter of an environment with vLLM (CPU build included).
"""

import asyncio
import itertools
import os
import signal
import time

import psutil
import pytest
import pytest_asyncio
import torch

from swe_rl.config.choices import Correction, EngineKind, LogprobsMode, LoraServing, WeightSync
from swe_rl.config.schema import AlgoConfig, Config, EngineConfig, ModelConfig, RolloutConfig, TrainerConfig
from swe_rl.engine.engine import ContextOverflowError, EngineError, SamplingParams
from swe_rl.engine.make import EngineFolders, engine_scratch, make_engines, start_engines
from swe_rl.engine.update import make_transfer
from swe_rl.engine.vllm.arguments import NoVllmError, vllm_command
from swe_rl.model.load import load_model, load_tokenizer
from swe_rl.trainer.lora import MergedWeights, is_adapter, with_adapter
from swe_rl.trainer.rank_trainer import RankTrainer
from tests.support.model_families import tiny_of_family

try:
    vllm_command(os.environ)
    HAS_VLLM = True
except NoVllmError:
    HAS_VLLM = False

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HAS_VLLM, reason="no vLLM here; SWE_RL_VLLM_COMMAND can name one"),
    pytest.mark.asyncio(loop_scope="module"),
]
MAX_MODEL_LEN = 2048
LONG = SamplingParams(1900)  # several seconds
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def tiny():
    return load_model(Config().model)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(tmp_path_factory, tiny):
    """(vLLM's, the embedded one), both with the tiny model."""
    root = tmp_path_factory.mktemp("vllm")
    folders = EngineFolders(root / "logs", root, root, root / "cache")
    made = []
    with engine_scratch(root / "scratch") as scratch:
        for kind in (EngineKind.vllm, EngineKind.embedded):
            config = Config(engine=EngineConfig(kind=kind, max_model_len=MAX_MODEL_LEN, max_num_seqs=16))
            own = EngineFolders(folders.logs, scratch, scratch, folders.cache)
            made += make_engines(config, own, model=tiny, pad_token_id=0, say=print)
        try:
            await start_engines(made)
            yield made
        finally:
            await asyncio.gather(*(engine.close() for engine in made))


def prompt_of(seed, tokens):
    return torch.randint(3, 1500, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


async def both(engines, prompt, params):
    return await asyncio.gather(*(engine.generate(prompt, params, request_id=f"r{prompt[0]}") for engine in engines))


def worst(first, second):
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


async def begin(engine, prompt, params, request_id="a"):
    """A request that the server says runs. On a busy machine a reply may end before we look, so we ask again."""
    for _ in range(10):
        asking = asyncio.create_task(engine.generate(prompt, params, request_id=request_id))
        while not asking.done():
            await engine._http.refresh()
            if engine.stats().running == 1 and not asking.done():
                return asking
        await asking
    return pytest.fail("ten replies ended before the server said that one runs")


async def begun_and_paused(engine, prompt, params):
    for _ in range(10):
        asking = await begin(engine, prompt, params)
        await engine.pause()
        if not asking.done():
            return asking
        await engine.resume()
    return pytest.fail("ten replies ended before the server paused")


async def until_running(engine, number):
    """Seconds until the server says so."""
    started_s = time.monotonic()
    while time.monotonic() - started_s < 60:
        await engine._http.refresh()
        if engine.stats().running == number:
            return time.monotonic() - started_s
    return pytest.fail(f"the server never said that {number} requests run")


async def test_greedy_tokens_and_logprobs_equal_the_embedded_engines(engines):
    for tokens in (1, 20, 75, 300, 480):
        real, own = await both(engines, prompt_of(tokens, tokens), SamplingParams(40, temperature=0.0))
        assert real.token_ids == own.token_ids and real.finish_reason == own.finish_reason == "length"
        assert worst(real.logprobs, own.logprobs) < TOLERANCE
        assert real.prefill_s > 0 and real.decode_s >= 0


async def test_stop_tokens_and_nothing_else_end_a_reply(engines):
    prompt = list(range(5, 41))  # after which the model says one line and its end token, 2
    real, own = await both(engines, prompt, SamplingParams(40, temperature=0.0, stop_token_ids=(2,)))
    assert real.token_ids == own.token_ids and real.token_ids[-1] == 2 and real.finish_reason == "stop"
    real, own = await both(engines, prompt, SamplingParams(40, temperature=0.0))
    assert real.token_ids == own.token_ids and len(real.token_ids) == 40


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
async def test_logprobs_are_those_of_the_sampling_distribution(engines, tiny, temperature):
    prompt = prompt_of(7, 60)
    done = await engines[0].generate(prompt, SamplingParams(60, temperature=temperature, seed=5), request_id="a")
    with torch.no_grad():
        logits = tiny(torch.tensor([[*prompt, *done.token_ids]])).logits[0, len(prompt) - 1 : -1]
    table = (logits / temperature).log_softmax(-1)
    expected = table.gather(-1, torch.tensor(done.token_ids)[:, None])[:, 0].tolist()
    assert worst(done.logprobs, expected) < TOLERANCE
    again = await engines[0].generate(prompt, SamplingParams(60, temperature=temperature, seed=5), request_id="a")
    assert again.token_ids == done.token_ids


async def test_the_next_turn_finds_its_prefix(engines):
    prompt = prompt_of(8, 200)
    first = await engines[0].generate(prompt, SamplingParams(20, temperature=0.0), request_id="a")
    longer = [*prompt, *first.token_ids, *prompt_of(9, 30)]
    second = await engines[0].generate(longer, SamplingParams(2), request_id="b")
    assert second.cached_tokens >= 192


async def test_a_prompt_without_room(engines):
    for engine in engines:
        with pytest.raises(ContextOverflowError):
            await engine.generate(prompt_of(1, MAX_MODEL_LEN), SamplingParams(1), request_id="a")
        done = await engine.generate(prompt_of(1, MAX_MODEL_LEN - 1), SamplingParams(9), request_id="a")
        assert len(done.token_ids) == 1


async def test_bad_ids_are_an_engine_error(engines):
    for engine in engines:
        with pytest.raises(EngineError, match="99999|token ids"):
            await engine.generate([5, 99999], SamplingParams(1), request_id="a")


async def test_cancelling_and_aborting_free_the_sequence(engines):
    engine = engines[0]
    asking = await begin(engine, prompt_of(2, 50), LONG)
    assert engine.stats().kv_used_tokens >= 50
    asking.cancel()
    print(f"freed after {await until_running(engine, 0):.3f} s")
    asking = await begin(engine, prompt_of(2, 50), LONG, "b")
    await engine.abort("b")
    done = await asyncio.wait_for(asking, 5)
    assert done.finish_reason == "abort" and 0 < len(done.token_ids) < 1900
    await until_running(engine, 0)


async def test_pause_freezes_in_mid_reply(engines):
    engine = engines[0]
    params = SamplingParams(600, seed=1)
    plain = await engine.generate(prompt_of(3, 50), params, request_id="a")
    asking = await begun_and_paused(engine, prompt_of(3, 50), params)
    await asyncio.sleep(2 * plain.decode_s)
    assert not asking.done()
    await engine.resume()
    assert (await asking).token_ids == plain.token_ids


def moved(tiny, seed):
    """Other weights, far enough away to sample other tokens."""
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: tensor + 0.02 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in tiny.state_dict().items()
    }
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    return weights


async def updated_in_flight(engines, tiny, prompts, params):
    """Replies in whose midst the weights changed, and the version of these. If a reply ends before, we ask again."""
    for version in range(2, 8):
        weights = moved(tiny, version)
        asking = [
            asyncio.create_task(engines[0].generate(prompt, params, request_id=f"u{number}"))
            for number, prompt in enumerate(prompts)
        ]
        while engines[0].stats().running < len(prompts) and not any(task.done() for task in asking):
            await engines[0]._http.refresh()
        await asyncio.sleep(0.1)
        started_s = time.monotonic()
        await engines[0].update_weights(weights, version)
        print(f"update with {len(prompts)} requests in flight {time.monotonic() - started_s:.3f} s")
        await engines[1].update_weights(weights, version)
        found = await asyncio.gather(*asking)
        if all(0 < list(done.weight_versions).count(version) < len(done.token_ids) for done in found):
            return found, version
    return pytest.fail("six times a reply ended before its weights changed")


async def test_what_is_in_flight_at_an_update_goes_on(engines, tiny):
    """Greedy, so that one token of other weights than it says would be seen."""
    params = SamplingParams(1900, temperature=0.0)
    prompts = [prompt_of(20 + number, 60) for number in range(3)]
    found, version = await updated_in_flight(engines, tiny, prompts, params)
    few = SamplingParams(100, temperature=0.0)
    for prompt, done in zip(prompts, found, strict=True):
        kept = done.weight_versions.index(version)
        assert set(done.weight_versions[kept:]) == {version} and len(done.token_ids) == 1900
        expected = await engines[1].generate([*prompt, *done.token_ids[:kept]], few, request_id="e")
        rest = min(100, 1900 - kept)
        assert done.token_ids[kept : kept + 100] == expected.token_ids[:rest]
        assert worst(done.logprobs[kept : kept + 100], expected.logprobs[:rest]) < TOLERANCE
    await until_running(engines[0], 0)


async def test_new_weights_and_a_killed_server(engines, tiny):
    weights = moved(tiny, 0)
    started_s = time.monotonic()
    await engines[0].update_weights(weights, 9)
    print(f"update {time.monotonic() - started_s:.3f} s")
    await engines[1].update_weights(weights, 9)
    prompt, params = prompt_of(4, 80), SamplingParams(40, temperature=0.0)
    real, own = await both(engines, prompt, params)
    assert real.token_ids == own.token_ids and worst(real.logprobs, own.logprobs) < TOLERANCE
    assert real.weight_version == own.weight_version == 9 and real.cached_tokens == 0

    engine = engines[0]
    asking = await begin(engine, prompt, LONG)
    family = psutil.Process(engine.server.pid).children(recursive=True)
    os.kill(psutil.Process(engine.server.pid).children()[0].pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="SIGKILL"):
        await asking
    started_s = time.monotonic()
    real = await engine.generate(prompt, params, request_id="b")
    print(f"serves again after {time.monotonic() - started_s:.1f} s")
    assert engine.restarts == 1 and real.weight_version == 9
    assert real.token_ids == own.token_ids and worst(real.logprobs, own.logprobs) < TOLERANCE
    assert not any(process.is_running() for process in family)


async def test_weights_from_the_trainers_memory(tmp_path, engines, tiny):
    """vLLM's own protocol, between processes without GPUs: tied embeddings reach both of their ends, too."""
    config = Config(
        engine=EngineConfig(kind=EngineKind.vllm, max_model_len=MAX_MODEL_LEN, max_num_seqs=16),
        trainer=TrainerConfig(weight_sync=WeightSync.nccl),
    )
    policy = load_model(Config().model)
    policy.load_state_dict(moved(tiny, 5))
    trainer = RankTrainer(policy, config.trainer, config.algo, pad_token_id=0)
    with engine_scratch(tmp_path / "scratch") as scratch:
        folders = EngineFolders(tmp_path / "logs", scratch, scratch, tmp_path / "cache")
        (engine,) = make_engines(config, folders, model=None, pad_token_id=0, say=print)
        await start_engines([engine])
        try:
            transfer = make_transfer(config, [engine], trainer)
            for version in (4, 5):
                print(await transfer.update(version))
            await engines[1].update_weights(moved(tiny, 5), 5)
            prompt, params = prompt_of(6, 80), SamplingParams(40, temperature=0.0)
            real, own = await both([engine, engines[1]], prompt, params)
            assert real.weight_version == 5 and real.token_ids == own.token_ids
            assert worst(real.logprobs, own.logprobs) < TOLERANCE
        finally:
            await engine.close()


LIMITS = [{"top_p": 0.9}, {"top_k": 5}, {"top_p": 0.8, "top_k": 20}, {"min_p": 0.1, "top_p": 0.95}]


@pytest.mark.parametrize(
    ("configured", "temperatures", "mode"),
    [
        (RolloutConfig(top_p=0.9), [1.0], LogprobsMode.raw),
        (RolloutConfig(top_p=0.9, temperature=0.7), [0.7, 1.0, 1.6], LogprobsMode.whole),
    ],
)
async def test_truncated_sampling_has_a_ratio_of_1_at_equal_weights(tmp_path, tiny, configured, temperatures, mode):
    """At temperature 1 vLLM can say it by itself, at others with our file in its workers, beside that for weights.

    What is left is the rounding of vLLM's CPU kernels, which is as large without truncation.
    """
    config = Config(
        engine=EngineConfig(kind=EngineKind.vllm, max_model_len=512, max_num_seqs=16),
        rollout=configured,
        algo=AlgoConfig(correction=Correction.sequence_tis),
        trainer=TrainerConfig(weight_sync=WeightSync.nccl),
    )
    with engine_scratch(tmp_path / "scratch") as scratch:
        folders = EngineFolders(tmp_path / "logs", scratch, scratch, tmp_path / "cache")
        (engine,) = make_engines(config, folders, model=None, pad_token_id=0, say=print)
        await start_engines([engine])
        try:
            assert engine._http.features.logprobs is mode
            for temperature, limits in itertools.product(temperatures, LIMITS):
                params = SamplingParams(200, temperature=temperature, seed=5, **limits)
                asked = [engine.generate(prompt_of(7, 60), params, request_id=f"{n}") for n in range(2)]
                done, _ = await asyncio.gather(*asked)
                gaps = await asyncio.to_thread(log_ratios, tiny, prompt_of(7, 60), done, temperature)
                print(temperature, limits, f"mean {gaps.abs().mean():.1e}, largest {gaps.abs().max():.1e}")
                assert gaps.abs().mean() < 1e-5 and gaps.abs().max() < 1e-4
        finally:
            await engine.close()


@torch.no_grad()
def log_ratios(model, prompt, completion, temperature):
    """Of each sampled token: its log-probability as a trainer computes it, less the engine's."""
    logits = model(torch.tensor([[*prompt, *completion.token_ids]])).logits[0, len(prompt) - 1 : -1]
    table = (logits / temperature).log_softmax(-1)
    computed = table.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
    return computed - torch.tensor(completion.logprobs)


async def test_an_adapter_beside_the_base(tmp_path, engines, tiny):
    """What it samples is what the embedded engine samples with the merged weights."""
    pytest.importorskip("peft")
    trained = TrainerConfig(lora_rank=8, lora_serving=LoraServing.adapter)
    config = Config(
        engine=EngineConfig(kind=EngineKind.vllm, max_model_len=MAX_MODEL_LEN, max_num_seqs=16), trainer=trained
    )
    policy, adapter = with_adapter(load_model(Config().model), trained)
    trainer = RankTrainer(policy, trained, config.algo, pad_token_id=0, adapter=adapter)
    prompt, params = prompt_of(7, 80), SamplingParams(40, temperature=0.0)
    with engine_scratch(tmp_path / "scratch") as scratch:
        folders = EngineFolders(tmp_path / "logs", scratch, scratch, tmp_path / "cache")
        (engine,) = make_engines(config, folders, model=None, pad_token_id=0, say=print)
        await start_engines([engine])
        try:
            for version in (1, 2):
                learn(policy, version)
                await engine.update_weights(trainer.weights(), version)
            merged = MergedWeights(dict(policy.named_parameters()), adapter.scale)
            await engines[1].update_weights(merged, 9)
            real, own = await both([engine, engines[1]], prompt, params)
            assert real.weight_version == 2 and real.token_ids == own.token_ids
            assert worst(real.logprobs, own.logprobs) < TOLERANCE
        finally:
            await engine.close()


@torch.no_grad()
def learn(policy, seed):
    """Adapters that change what is sampled, as training would."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in policy.named_parameters():
        if is_adapter(name):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("family", ["gpt_oss", "mixtral"])
async def test_new_weights_reach_the_experts(tmp_path, family):
    """gpt_oss copies experts and sinks itself, past vLLM's reload. The CPU build packs experts only when it starts."""
    folder = tmp_path / "model"
    sizes = {"hidden_size": 128, "head_dim": 32, "intermediate_size": 128, "vocab_size": 1536}
    policy = tiny_of_family(family, **sizes)
    policy.save_pretrained(folder)
    load_tokenizer(Config().model).save_pretrained(folder)
    config = Config(
        model=ModelConfig(path=str(folder), tie_word_embeddings=False, chat_template="own", tool_parser="none"),
        engine=EngineConfig(kind=EngineKind.vllm, max_model_len=512, max_num_seqs=4),
        trainer=TrainerConfig(weight_sync=WeightSync.nccl),
    )
    trainer = RankTrainer(policy, config.trainer, config.algo, pad_token_id=0)
    with engine_scratch(tmp_path / "scratch") as scratch:
        folders = EngineFolders(tmp_path / "logs", scratch, scratch, tmp_path / "cache")
        (engine,) = make_engines(config, folders, model=None, pad_token_id=0, say=print)
        await start_engines([engine])
        try:
            transfer = make_transfer(config, [engine], trainer)
            for version in (1, 2):
                if version == 2:
                    policy.load_state_dict(
                        {name: weight + 0.02 * torch.randn_like(weight) for name, weight in policy.state_dict().items()}
                    )
                await transfer.update(version)
                prompt = prompt_of(version, 40)
                done = await engine.generate(prompt, SamplingParams(20), request_id=f"v{version}")
                with torch.no_grad():
                    logits = policy(torch.tensor([[*prompt, *done.token_ids]])).logits[0, len(prompt) - 1 : -1]
                expected = logits.log_softmax(-1).gather(-1, torch.tensor(done.token_ids)[:, None])[:, 0].tolist()
                assert worst(done.logprobs, expected) < TOLERANCE
        finally:
            await engine.close()
