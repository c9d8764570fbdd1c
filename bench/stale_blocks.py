"""Does vLLM ever answer from keys and values of old weights, with a tier of cache in the host's memory? Updates the
weights many times, and compares the log-probability of each sampled token with the model's own.

    python -m bench.stale_blocks --updates 20 --out stale.json             (one GPU; --cpu: vLLM's CPU build)
    python -m bench.stale_blocks --updates 4 --control                     (without what keeps weights apart)

The engine is started, asked and updated by the run's own code (`make_engines`, `generate`, `update_weights`). Its GPU
holds a fraction of the prompts, so that most prefixes that are asked for again have to come from the host.

Invariants:
- A token is old if it has a log-probability that the weights of its version do not give, within the tolerance.
- Each update is one of three: nothing in flight; requests in flight; servers put to sleep and woken (--colocated).
- The control removes the reset and the salt. If it finds nothing, the test could not have found anything either, and
  the exit status says so.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from swe_rl.config.choices import EngineKind, WeightSync
from swe_rl.config.schema import Config, EngineConfig, HardwareConfig, LayoutConfig, TrainerConfig
from swe_rl.engine.engine import Completion, Engine, SamplingParams
from swe_rl.engine.make import engine_scratch, make_engines, start_engines
from swe_rl.engine.server import engine as http_engine
from swe_rl.engine.server import wire
from swe_rl.engine.server.monitor import ServerMetrics, parse_metrics
from swe_rl.engine.update import EngineTurns
from swe_rl.engine.vllm.engine import VllmEngine
from swe_rl.engine.vllm.engines import EngineFolders
from swe_rl.model.load import load_model

PROMPTS = 16
PROMPT_TOKENS = 1200
SAMPLED_TOKENS = 24
# The GPU holds less than three of the prompts, so that all others have to come from the host.
GPU_TOKENS = 4096
# Float32 sums in another order differ by less; weights that moved by MOVE differ by much more.
TOLERANCE = 0.02
MOVE = 0.02


@dataclass(slots=True)
class UpdateCount:
    """What was sampled after one update. `worst` is the largest difference to the log-probability of the right
    weights, and `moved` the median difference between the right weights and the ones before."""

    version: int
    kind: str
    tokens: int = 0
    old_tokens: int = 0
    worst: float = 0.0
    moved: float = 0.0
    cached_tokens: int = 0
    host_hits_tokens: int = 0
    update_s: float = 0.0


@dataclass(slots=True)
class Policy:
    """The model's weights by version, on the CPU; the newest few are kept."""

    model: Any
    states: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)

    def move(self, version: int) -> Mapping[str, torch.Tensor]:
        """Returns the weights of a new version: those of the start, moved at random."""
        generator = torch.Generator().manual_seed(version)
        start = self.states[0]
        moved = {name: tensor + MOVE * torch.randn(tensor.shape, generator=generator) for name, tensor in start.items()}
        if "lm_head.weight" in moved:
            moved["lm_head.weight"] = moved["model.embed_tokens.weight"]
        self.states[version] = moved
        for old in [known for known in self.states if 0 < known < version - 2]:
            del self.states[old]
        return moved

    @torch.no_grad()
    def logprobs(self, version: int, prompt: Sequence[int], sampled: Sequence[int]) -> list[float]:
        """Returns the log-probability of each sampled token under the weights of `version`."""
        self.model.load_state_dict(self.states[version])
        ids = torch.tensor([[*prompt, *sampled]], device=self.model.device)
        logits = self.model(ids).logits[0, len(prompt) - 1 : -1].float()
        chosen = torch.tensor(list(sampled), device=logits.device)[:, None]
        found: list[float] = logits.log_softmax(-1).gather(-1, chosen)[:, 0].tolist()
        return found


def prompt_of(number: int) -> list[int]:
    generator = torch.Generator().manual_seed(1000 + number)
    return [int(token) for token in torch.randint(3, 1000, (PROMPT_TOKENS,), generator=generator)]


async def read_metrics(engine: VllmEngine) -> ServerMetrics:
    answer = await (await engine.receiver()).client.get("/metrics", timeout_s=30.0)
    return parse_metrics(answer.body.decode()) or ServerMetrics()


async def ask_all(engine: Engine, name: str, sampled_tokens: int = SAMPLED_TOKENS) -> list[Completion]:
    """Asks all prompts at once."""
    asked = [
        engine.generate(prompt_of(number), SamplingParams(sampled_tokens, seed=number), request_id=f"{name}.{number}")
        for number in range(PROMPTS)
    ]
    return list(await asyncio.gather(*asked))


def count_old(policy: Policy, completions: Sequence[Completion], count: UpdateCount) -> None:
    """Compares every sampled token with the weights of its own version."""
    moves: list[float] = []
    for number, done in enumerate(completions):
        prompt = prompt_of(number)
        right = {version: policy.logprobs(version, prompt, done.token_ids) for version in set(done.weight_versions)}
        newest = max(right)
        before = policy.logprobs(newest - 1, prompt, done.token_ids) if newest - 1 in policy.states else None
        for place, version in enumerate(done.weight_versions):
            difference = abs(done.logprobs[place] - right[version][place])
            count.tokens += 1
            count.old_tokens += difference > TOLERANCE
            count.worst = max(count.worst, difference)
            if before is not None:
                moves.append(abs(before[place] - right[newest][place]))
        count.cached_tokens += done.cached_tokens
    count.moved = sorted(moves)[len(moves) // 2] if moves else 0.0


async def update_and_ask(engine: VllmEngine, policy: Policy, version: int, kind: str) -> UpdateCount:
    """Makes one update in one of the three ways, asks all prompts twice, and counts."""
    count = UpdateCount(version, kind)
    weights = policy.move(version)
    flying = asyncio.ensure_future(ask_all(engine, f"fly{version}", 400)) if kind == "in flight" else None
    if flying is not None:
        await asyncio.sleep(0.5)
    turns = EngineTurns([engine] if kind == "sleep" else [])
    if kind == "sleep":
        await turns.to_trainer()
        await turns.to_engines()
    began_s = time.monotonic()
    await engine.update_weights(weights, version)
    count.update_s = round(time.monotonic() - began_s, 3)
    before = await read_metrics(engine)
    completions = [*(await ask_all(engine, f"a{version}")), *(await ask_all(engine, f"b{version}"))]
    after = await read_metrics(engine)
    count.host_hits_tokens = after.host_hits_tokens_total - before.host_hits_tokens_total
    for start in range(0, len(completions), PROMPTS):
        count_old(policy, completions[start : start + PROMPTS], count)
    if flying is not None:
        count_old(policy, await flying, count)
    return count


@contextlib.contextmanager
def without_what_keeps_apart() -> Iterator[None]:
    """Removes the salt of requests and the reset of both tiers: the control."""

    async def nothing(*_: object, **__: object) -> None:
        return None

    body_of = wire.request_body

    def unsalted(*words: Any, **named: Any) -> dict[str, Any]:
        return body_of(*words, **{**named, "cache_salt": None})

    with (
        mock.patch.object(http_engine, "request_body", unsalted),
        mock.patch.object(http_engine, "forget_prefixes", nothing),
    ):
        yield


def config_of(arguments: argparse.Namespace) -> Config:
    extra = [*([] if arguments.cpu else ["--dtype", "float32"]), *arguments.extra.split()]
    tier = f"{arguments.host_gb:g}"
    if arguments.cpu:
        # Our key is for GPUs: what the CPU build makes of vLLM's flag is what is asked here.
        extra += ["--kv-offloading-size", tier]
    engine = EngineConfig(
        kind=EngineKind.vllm,
        max_model_len=2048,
        max_num_seqs=16,
        kv_cache_tokens=GPU_TOKENS,
        host_cache_gb="0" if arguments.cpu else tier,
        gpu_memory_utilization=0.3,
        extra_arguments=tuple(extra),
        start_timeout_s=400.0,
    )
    # There is no trainer that could send from its memory.
    trainer = TrainerConfig(weight_sync=WeightSync.disk)
    if arguments.cpu:
        return Config(engine=engine, trainer=trainer)
    layout = LayoutConfig(engines=1, trainer_gpus=int(arguments.colocated), colocated=arguments.colocated)
    hardware = HardwareConfig(nodes=1, gpus_per_node=1, gpu_memory_gb=141.0)
    return Config(engine=engine, trainer=trainer, layout=layout, hardware=hardware)


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    config = config_of(arguments)
    model = load_model(config.model)
    if not arguments.cpu:
        model.to(torch.device("cuda"))  # type: ignore[arg-type]
    policy = Policy(model)
    policy.states[0] = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    kinds = ["quiet", "in flight", *(["sleep"] if arguments.colocated else [])]
    counts: list[UpdateCount] = []
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        with engine_scratch(folder / "scratch") as scratch:
            folders = EngineFolders(folder / "logs", scratch, scratch, folder / "cache")
            engines = make_engines(config, folders, model=model, pad_token_id=0, say=print)
            [engine] = engines
            assert isinstance(engine, VllmEngine)
            try:
                await start_engines(engines)
                started = await read_metrics(engine)
                print(f"tier in the host's memory: {started.host_cache_bytes / 2**30:.2f} GiB", flush=True)
                await ask_all(engine, "first")
                for version in range(1, arguments.updates + 1):
                    count = await update_and_ask(engine, policy, version, kinds[version % len(kinds)])
                    counts.append(count)
                    print(asdict(count), flush=True)
            finally:
                await asyncio.gather(*(engine.close() for engine in engines))
                for log in sorted((folder / "logs").glob("*.log")):
                    arguments.log_tail = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-40:])
    return {
        "updates": len(counts),
        "tokens": sum(count.tokens for count in counts),
        "old_tokens": sum(count.old_tokens for count in counts),
        "worst": max(count.worst for count in counts),
        "host_cache_gib": started.host_cache_bytes / 2**30,
        "cached_tokens": sum(count.cached_tokens for count in counts),
        "host_hits_tokens": sum(count.host_hits_tokens for count in counts),
        "control": arguments.control,
        "by_update": [asdict(count) for count in counts],
    }


def verdict(made: Mapping[str, Any]) -> tuple[int, str]:
    """Returns the exit status and a sentence."""
    if not made["host_hits_tokens"]:
        return 2, "Nothing came from the host's memory, so this run says nothing about the tier."
    if made["control"]:
        found = made["old_tokens"] > 0
        return (0 if found else 3), f"The control found {made['old_tokens']} old of {made['tokens']} tokens."
    return int(made["old_tokens"] > 0), f"{made['old_tokens']} of {made['tokens']} tokens are of old weights."


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Looks for tokens that were sampled from old keys and values.")
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--host-gb", type=float, default=2.0)
    parser.add_argument("--colocated", action="store_true", help="every third update puts the server to sleep")
    parser.add_argument("--control", action="store_true", help="without the reset and the salt")
    parser.add_argument("--cpu", action="store_true", help="vLLM's CPU build")
    parser.add_argument("--extra", default="", help="further arguments of vllm serve, as one string")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    arguments = parse(words)
    arguments.log_tail = ""
    apart = without_what_keeps_apart() if arguments.control else contextlib.nullcontext()
    try:
        with apart:
            made = asyncio.run(measure(arguments))
    except Exception:
        print(arguments.log_tail, file=sys.stderr)
        raise
    if arguments.out:
        arguments.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    status, said = verdict(made)
    print(json.dumps({name: value for name, value in made.items() if name != "by_update"}))
    print(said)
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
