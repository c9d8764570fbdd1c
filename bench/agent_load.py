"""A closed loop of agents against any OpenAI endpoint: completion, tool, observation, completion, ...

    python -m bench.agent_load --url http://127.0.0.1:8000 --out load.json             (a gateway: /sessions/ID/v1)
    python -m bench.agent_load --plain --url http://a:8001 --url http://b:8001          (engines, programs sticky)

Invariants:
- The next turn of a program begins when its last one was answered and the tool's time has passed; nothing is given up
  for being slow: no client timeout is shorter than the run's.
- Turn n samples the drawn number of tokens (`max_tokens`, with `ignore_eos` where the server knows it); prompts that
  have another length than expected, and replies cut short, are counted.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson

from bench.load import Load, LoadOptions, first_messages, make_load, observation
from swe_rl.router.simulation.outcome import percentile
from swe_rl.router.simulation.workload import WORKLOADS, SimulatedProgram

_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """Seconds since the load began; `latency_s` as the agent saw it."""

    ended_s: float
    latency_s: float
    prompt_tokens: int
    cached_tokens: int
    sampled_tokens: int


@dataclass(slots=True)
class ProgramRecord:
    """`odd_prompts`: prompts that had another length than expected; `ended_s` None: cut short, or failed."""

    program_id: str
    started_s: float = 0.0
    ended_s: float | None = None
    turns: list[TurnRecord] = field(default_factory=list)
    tool_s: float = 0.0
    odd_prompts: int = 0
    short_replies: int = 0
    retries: int = 0
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        latencies = sorted(turn.latency_s for turn in self.turns)
        return {
            "program": self.program_id,
            "started_s": round(self.started_s, 3),
            "ended_s": None if self.ended_s is None else round(self.ended_s, 3),
            "turns": len(self.turns),
            "sampled_tokens": sum(turn.sampled_tokens for turn in self.turns),
            "prompt_tokens": sum(turn.prompt_tokens for turn in self.turns),
            "cached_tokens": sum(turn.cached_tokens for turn in self.turns),
            "serving_s": round(sum(latencies), 3),
            "tool_s": round(self.tool_s, 3),
            "worst_turn_s": round(latencies[-1], 3) if latencies else 0.0,
            "error": self.error,
        }


def summarize(records: Sequence[ProgramRecord], elapsed_s: float) -> dict[str, Any]:
    turns = [turn for record in records for turn in record.turns]
    ended = sorted(record.ended_s for record in records if record.ended_s is not None)
    errors = [record.error for record in records if record.error is not None]
    sampled, prompts = sum(one.sampled_tokens for one in turns), sum(one.prompt_tokens for one in turns)
    latencies = sorted(turn.latency_s for turn in turns)
    whole = len(ended) == len(records)
    makespan_s = ended[-1] if whole else elapsed_s
    return {
        "complete": whole,
        "programs": len(records),
        "programs_ended": len(ended),
        "turns": len(turns),
        "makespan_s": round(makespan_s, 3),
        "sampled_tokens": sampled,
        "tokens_per_s": round(sampled / makespan_s, 2) if makespan_s else 0.0,
        "prompt_tokens": prompts,
        "cached_tokens": sum(turn.cached_tokens for turn in turns),
        "cached_share": round(sum(turn.cached_tokens for turn in turns) / prompts, 4) if prompts else 0.0,
        "turn_p50_s": round(percentile(latencies, 50), 3),
        "turn_p90_s": round(percentile(latencies, 90), 3),
        "turn_p99_s": round(percentile(latencies, 99), 3),
        "turn_max_s": round(latencies[-1], 3) if latencies else 0.0,
        "half_ended_s": round(percentile(ended, 50), 3),
        "most_ended_s": round(percentile(ended, 90), 3),
        "tokens_per_s_by_10s": _by_window(turns, makespan_s),
        "odd_prompts": sum(record.odd_prompts for record in records),
        "short_replies": sum(record.short_replies for record in records),
        "retries": sum(record.retries for record in records),
        "num_errors": len(errors),
        "errors": sorted(set(errors))[:5],
        "by_program": [record.to_json() for record in records],
    }


def _by_window(turns: Sequence[TurnRecord], until_s: float) -> list[float]:
    sums = [0] * (int(until_s / _WINDOW_S) + 1)
    for turn in turns:
        sums[min(len(sums) - 1, int(turn.ended_s / _WINDOW_S))] += turn.sampled_tokens
    return [round(tokens / _WINDOW_S, 1) for tokens in sums]


_BUSY_TRIES = 120
_BUSY_PAUSE_S = 1.0
# vLLM: every id that random weights sample becomes a word again.
VLLM_BODY = {"ignore_eos": True, "skip_special_tokens": False}


class CallError(Exception):
    """A completion was refused."""


async def _nothing(_: SimulatedProgram) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Target:
    """Where programs go. `base_url(program, number)` ends in /v1; `begin` and `end` are told of each program,
    `all_begun` when none is left to begin; `body` is added to every request's."""

    base_url: Callable[[SimulatedProgram, int], str]
    model: str
    vocabulary_size: int
    body: dict[str, Any] = field(default_factory=dict)
    begin: Callable[[SimulatedProgram], Awaitable[None]] = _nothing
    end: Callable[[SimulatedProgram], Awaitable[None]] = _nothing
    all_begun: Callable[[], None] = lambda: None


class AgentLoad:
    def __init__(self, load: Load, target: Target, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._load = load
        self._target = target
        self._clock = clock
        self._records = [ProgramRecord(program.program_id) for program in load.programs]
        self._began_s = 0.0

    async def run(self, time_limit_s: float | None = None) -> dict[str, Any]:
        """The summary, as JSON takes it; what the limit cuts short is in it up to there."""
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3.0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30.0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            self._began_s = self._clock()
            tasks = [
                asyncio.ensure_future(self._program(session, number, program))
                for number, program in enumerate(self._load.programs)
            ]
            await asyncio.sleep(0)
            self._target.all_begun()
            _, cut = await asyncio.wait(tasks, timeout=time_limit_s)
            elapsed_s = self._now()
            for task in cut:
                task.cancel()
            failures = await asyncio.gather(*tasks, return_exceptions=True)
        for failure in failures:
            if isinstance(failure, Exception):
                raise failure
        return summarize(self._records, elapsed_s)

    def _now(self) -> float:
        return self._clock() - self._began_s

    async def _program(self, session: aiohttp.ClientSession, number: int, program: SimulatedProgram) -> None:
        record = self._records[number]
        record.started_s = self._now()
        await self._target.begin(program)
        try:
            await self._turns(session, self._target.base_url(program, number), program, record)
            record.ended_s = self._now()
        except (CallError, aiohttp.ClientError, OSError) as error:
            record.error = f"{type(error).__name__}: {error}"[:300]
        finally:
            await self._target.end(program)

    async def _turns(
        self, session: aiohttp.ClientSession, url: str, program: SimulatedProgram, record: ProgramRecord
    ) -> None:
        seed, words = self._load.options.seed, self._target.vocabulary_size
        messages = first_messages(program, seed, words)
        held = 0
        for index, turn in enumerate(program.turns):
            if index:
                messages.append(observation(program, index, seed, words))
            asked_s = self._now()
            reply = await self._call(session, url, self._body(program, messages, turn.out_tokens), record)
            done = _turn_record(reply, self._now(), asked_s)
            record.turns.append(done)
            record.odd_prompts += done.prompt_tokens != held + turn.new_in_tokens
            record.short_replies += done.sampled_tokens != turn.out_tokens
            held = done.prompt_tokens + done.sampled_tokens
            messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
            await asyncio.sleep(turn.tool_s)
            record.tool_s += turn.tool_s

    def _body(self, program: SimulatedProgram, messages: Sequence[dict[str, str]], max_tokens: int) -> bytes:
        return orjson.dumps(
            {
                "model": self._target.model,
                "messages": messages,
                "max_tokens": max_tokens,
                "temperature": 1.0,
                **self._target.body,
                **({"program_id": program.program_id} if "program_id" in self._target.body else {}),
            }
        )

    async def _call(
        self, session: aiohttp.ClientSession, url: str, body: bytes, record: ProgramRecord
    ) -> dict[str, Any]:
        """Raises CallError. A server that is busy (503) is asked again."""
        headers = {"Content-Type": "application/json", "X-Session-ID": record.program_id}
        for again in range(_BUSY_TRIES):
            async with session.post(f"{url}/chat/completions", data=body, headers=headers) as response:
                text = await response.read()
                if response.status == 200:
                    found: dict[str, Any] = orjson.loads(text)
                    return found
                if response.status != 503 or again + 1 == _BUSY_TRIES:
                    raise CallError(f"{response.status} {text.decode(errors='replace')[:200]}")
                pause_s = float(response.headers.get("Retry-After") or _BUSY_PAUSE_S)
            record.retries += 1
            await asyncio.sleep(pause_s)
        raise AssertionError("the loop returns or raises")


def _turn_record(reply: dict[str, Any], ended_s: float, asked_s: float) -> TurnRecord:
    usage = reply["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return TurnRecord(ended_s, ended_s - asked_s, usage["prompt_tokens"], cached, usage["completion_tokens"])


def engines_target(urls: Sequence[str], model: str, vocabulary_size: int, body: dict[str, Any]) -> Target:
    """Engines without anything in between: each program stays with one, evenly spread."""
    return Target(lambda _, number: f"{_root(urls[number % len(urls)])}/v1", model, vocabulary_size, body)


def gateway_target(url: str, model: str, vocabulary_size: int) -> Target:
    """A gateway of this project."""
    root = _root(url)
    return Target(lambda program, _: f"{root}/sessions/{quote(program.program_id, safe='')}/v1", model, vocabulary_size)


def router_target(url: str, model: str, vocabulary_size: int, release_path: str | None) -> Target:
    """Another project's router: programs are named in the body and in X-Session-ID, and released where it has a
    path for that."""
    root = _root(url)

    async def release(program: SimulatedProgram) -> None:
        if release_path is not None:
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{root}{release_path}", json={"program_id": program.program_id}),
            ):
                pass

    body = {**VLLM_BODY, "program_id": ""}
    return Target(lambda _, __: f"{root}/v1", model, vocabulary_size, body, end=release)


def _root(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


async def served_model(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{_root(url)}/v1/models") as response:
        response.raise_for_status()
        return str((await response.json())["data"][0]["id"])


def add_load_options(parser: argparse.ArgumentParser) -> None:
    defaults = LoadOptions()
    group = parser.add_argument_group("workload")
    group.add_argument("--workload", choices=sorted(WORKLOADS), default=defaults.workload)
    group.add_argument("--programs", type=int, default=defaults.programs)
    group.add_argument("--samples-per-prompt", type=int, default=defaults.samples_per_prompt)
    group.add_argument("--seed", type=int, default=defaults.seed)
    group.add_argument("--scale", type=float, default=1.0, help="programs and turns times this")
    group.add_argument("--token-scale", type=float, default=1.0, help="every length times this")
    group.add_argument("--tool-scale", type=float, default=1.0, help="every tool's time times this")
    group.add_argument("--sampled-median", type=float, default=0.0, help="lognormal sampled tokens of a turn")
    group.add_argument("--sampled-sigma", type=float, default=defaults.sampled_sigma)
    group.add_argument("--tool-median-s", type=float, default=0.0, help="lognormal seconds of a tool")
    group.add_argument("--tool-sigma", type=float, default=defaults.tool_sigma)
    group.add_argument("--max-trajectory-tokens", type=int, default=defaults.max_trajectory_tokens)
    group.add_argument("--vocabulary", type=int, default=151936, help="words of the served tokenizer")


def load_options(arguments: argparse.Namespace) -> LoadOptions:
    return LoadOptions(**{name: getattr(arguments, name) for name in asdict(LoadOptions())})


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A closed loop of agents against OpenAI endpoints.")
    parser.add_argument("--url", action="append", required=True, dest="urls")
    parser.add_argument("--plain", action="store_true", help="engines: no session in the URL, programs sticky")
    parser.add_argument("--router", action="store_true", help="another project's router: program_id in the body")
    parser.add_argument("--release-path", default="/programs/release", help="of --router; empty: none")
    parser.add_argument("--model", help="default: the first that the first URL serves")
    parser.add_argument("--time-limit-s", type=float)
    parser.add_argument("--out", type=Path)
    add_load_options(parser)
    return parser.parse_args(words)


async def _main(arguments: argparse.Namespace) -> None:
    load = make_load(load_options(arguments))
    print(load.describe(), flush=True)
    model = arguments.model or await served_model(arguments.urls[0])
    if arguments.router:
        target = router_target(arguments.urls[0], model, arguments.vocabulary, arguments.release_path or None)
    elif arguments.plain:
        target = engines_target(arguments.urls, model, arguments.vocabulary, VLLM_BODY)
    else:
        target = gateway_target(arguments.urls[0], model, arguments.vocabulary)
    summary = await AgentLoad(load, target).run(arguments.time_limit_s)
    summary = {"workload": load.digest, "options": asdict(load.options), **summary}
    if arguments.out:
        arguments.out.write_text(json.dumps(summary) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in summary.items() if name != "by_program"}, indent=1))


if __name__ == "__main__":
    asyncio.run(_main(parse(sys.argv[1:])))
