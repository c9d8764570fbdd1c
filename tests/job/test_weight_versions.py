"""New weights in mid-rollout: no token carries a version that did not sample it."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

pytest.importorskip("openai")

import torch
from openai import AsyncOpenAI

from swe_rl.config.schema import EngineConfig, GatewayConfig, RouterConfig
from swe_rl.engine.embedded.engine import EmbeddedEngine
from swe_rl.engine.server.client import HttpClient
from swe_rl.engine.server.engine import HttpEngine
from swe_rl.engine.server.features import Needs
from swe_rl.engine.server.weights import WeightFolders
from swe_rl.engine.update import update_engines
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import whole_prompts
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.tiny import build_tokenizer
from swe_rl.router.make import make_router
from tests.support.fake_vllm.model import FakeModel
from tests.support.fake_vllm.server import FakeSettings, FakeVllm
from tests.support.tiny_qwen3 import tiny_qwen3

VOCAB, MAX_LEN = 384, 900
SIZES = {"hidden_size": 32, "intermediate_size": 48, "head_dim": 16, "max_position_embeddings": 1024}
VERSIONS, PROGRAMS, TURNS, TURN_TOKENS = 5, 6, 4, 40


@pytest.fixture(scope="module")
def models():
    torch.set_num_threads(1)
    return [tiny_qwen3(seed, vocab_size=VOCAB, **SIZES).eval() for seed in range(VERSIONS + 1)]


@pytest.fixture(scope="module")
def renderer():
    return ChatRenderer(build_tokenizer(["Fix the bug in lib.py. ls add(a, b)\n"] * 3, VOCAB), thinking=False)


async def rollout(engines, renderer, path, update, seed):
    """Programs of several turns through a gateway; `update(version)` comes after some of the calls each time, while
    others are in flight. Returns all traces."""
    rng, done = random.Random(seed), 0
    store = TraceStore(path / "traces.db")
    gateway = Gateway(
        engines,
        make_router(RouterConfig(), engines),
        renderer,
        store,
        model_name="tiny",
        config=GatewayConfig(),
        max_model_len=MAX_LEN,
        clients_begin=True,
    )

    async def program(name, client):
        nonlocal done
        messages = [{"role": "user", "content": f"Fix the bug {name}."}]
        for turn in range(TURNS):
            reply = await client.chat.completions.create(
                model="tiny", messages=messages, max_tokens=TURN_TOKENS, extra_body={"program_id": name}
            )
            done += 1
            told = reply.choices[0].message.model_dump(exclude_none=True)
            messages += [told, {"role": "user", "content": f"Go on {turn}."}]

    async def updates():
        for version in range(1, VERSIONS + 1):
            due = 4 * version - rng.randrange(3)
            while done < due:  # noqa: ASYNC110 - whatever is in flight then is what the test is about
                await asyncio.sleep(0.001)
            await asyncio.sleep(rng.uniform(0.0, 0.02))
            with gateway.syncing():
                await update(version)

    try:
        url = await gateway.start()
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            running = [asyncio.create_task(program(f"p{number}", client)) for number in range(PROGRAMS)]
            await asyncio.gather(updates(), *running)
        await store.flush()
        sessions = [store.traces(session) for session in store.sessions()]
        pairs = [pair for traces in sessions for pair in zip(traces, whole_prompts(traces), strict=True)]
        return [(trace, ids.tolist()) for trace, ids in pairs]
    finally:
        await gateway.close()
        store.close()


def logprobs_of(model, trace, prompt):
    """Teacher-forced log-probabilities [sampled tokens] under `model`."""
    ids = torch.tensor([[*prompt, *trace.sampled_ids.tolist()]])
    start = len(prompt)
    with torch.no_grad():
        logits = model(ids).logits[0, start - 1 : -1]
    return logits.log_softmax(-1).gather(1, ids[0, start:, None])[:, 0]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
async def test_embedded_engines(models, renderer, tmp_path, seed):
    config = EngineConfig(max_model_len=MAX_LEN, max_num_seqs=4)  # fewer than programs: some wait in the engine
    async with AsyncExitStack() as stack:
        engines = [EmbeddedEngine(models[0], config, name=f"engine{n}", pad_token_id=0) for n in range(2)]
        for engine in engines:
            stack.push_async_callback(engine.close)
            await engine.start()

        async def update(version):
            await update_engines(engines, models[version].state_dict(), version)

        traces = await rollout(engines, renderer, tmp_path, update, seed)
    assert len(traces) == PROGRAMS * TURNS and len({one.weight_versions[0] for one, _ in traces}) > 2
    assert any(len(set(trace.weight_versions.tolist())) > 1 for trace, _ in traces)  # some were in flight
    seen = 0
    for trace, prompt in traces:
        told, versions = torch.from_numpy(trace.logprobs.copy()), trace.weight_versions.tolist()
        assert versions == sorted(versions)
        by_model = torch.stack([logprobs_of(model, trace, prompt) for model in models])
        right = torch.stack([by_model[version, at] for at, version in enumerate(versions)])
        assert (told - right).abs().max() < 1e-3
        others = [[(version + shift) % len(models) for version in versions] for shift in range(1, len(models))]
        wrong = [torch.stack([by_model[version, at] for at, version in enumerate(other)]) for other in others]
        seen += all((told - other).abs().max() > 1e-2 for other in wrong)  # a wrong one would have been seen
    assert seen > 0.9 * len(traces)  # a reply of one or two tokens may be as likely under another


@pytest.mark.parametrize("kind", ["timings", "spans"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
async def test_servers(models, renderer, tmp_path, kind, seed):
    """Of both APIs: one tells versions of the tokens, the other does not."""
    settings = FakeSettings(
        vocab_size=VOCAB,
        token_delay_s=0.002,
        max_num_seqs=2,
        max_model_len=MAX_LEN,
        timings=kind == "timings",
        weight_spans=kind == "spans",
    )
    source = tmp_path / "source"
    models[0].save_pretrained(source)
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(FakeVllm(settings)) for _ in range(2)]
        folders = WeightFolders(tmp_path / "weights", source)
        needs = Needs(settings.model, MAX_LEN)
        engines = [
            HttpEngine(HttpClient(server.url), needs, name=f"engine{n}", max_num_seqs=2, weights=folders)
            for n, server in enumerate(servers)
        ]
        for engine in engines:
            stack.push_async_callback(engine.close)
            await engine.start()

        async def update(version):
            await update_engines(engines, models[version].state_dict(), version)

        traces = await rollout(engines, renderer, tmp_path, update, seed)
    assert len(traces) == PROGRAMS * TURNS and len({one.weight_versions[0] for one, _ in traces}) > 2
    assert any(len(set(trace.weight_versions.tolist())) > 1 for trace, _ in traces)  # some were in flight
    for trace, prompt in traces:
        sampled, versions = trace.sampled_ids.tolist(), trace.weight_versions.tolist()
        for start in [at for at, version in enumerate(versions) if at == 0 or version != versions[at - 1]]:
            count = versions.count(versions[start])
            model = FakeModel(VOCAB, weights=str(versions[start]) if versions[start] else "default")
            asked = {"max_tokens": count, "stop_token_ids": renderer.stop_token_ids}
            expected = model.sample([*prompt, *sampled[:start]], asked, MAX_LEN)[0]
            assert sampled[start : start + count] == expected
