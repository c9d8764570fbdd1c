"""Routers compared on running vLLM servers: the same agents through this project's gateway, one router after the other.

    python -m bench.router_bench --model-dir /tmp/qwen3_14b --url http://127.0.0.1:8001 --url http://127.0.0.1:8002 \\
        --out arms.jsonl

Arms are what bench/arms.py reads from conf/router; `direct`: the servers themselves, programs sticky, asked for equal
token ids and log-probabilities; `vllm_router` and `vllm_router_sticky`: vLLM's router, scheduling programs, or with its
policy sticky_least_loaded (--peers).

Invariants:
- Every arm begins with empty prefix caches on idle servers, and sees the same programs.
- The order of the arms turns by one at every repeat: drift of the machine does not favour one.
- A line is written as soon as its arm is done.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp

from bench.agent_load import (
    VLLM_BODY,
    AgentLoad,
    Target,
    add_load_options,
    engines_target,
    load_options,
    router_target,
    served_model,
)
from bench.arms import router_config
from bench.load import Load, make_load
from bench.loop_lag import LoopLag
from bench.peers import VLLM_ROUTER, Peer, PeerError, process, program_scheduling, run_to_end
from bench.serve_gateway import MODEL, open_gateway
from bench.words import load_tokenizer
from swe_rl.engine.server.client import base_url
from swe_rl.engine.server.monitor import ServerMetrics, parse_metrics
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.session import SessionSettings
from swe_rl.host.addresses import free_port
from swe_rl.router.simulation.workload import SimulatedProgram

ARMS = ("default", "sticky_least_loaded", "cap:16", "cap:20", "cap:24", "tr", "tr_atw01")
DIRECT = "direct"
OTHERS = ("vllm_router", "vllm_router_sticky")
_IDLE_WITHIN_S = 60.0
_COUNTED = (
    "preemptions_total",
    "prefix_queries_tokens_total",
    "prefix_hits_tokens_total",
    "sampled_tokens_total",
    "host_hits_tokens_total",
)


class ServersBusyError(RuntimeError):
    """A server does not come to rest, or keeps its prefix cache."""


class Servers:
    """The vLLM servers beside their work: emptied, and read off."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = [base_url(url) for url in urls]

    async def metrics(self) -> list[ServerMetrics]:
        async with aiohttp.ClientSession() as session:
            texts = [await self._get(session, f"{url}/metrics") for url in self._urls]
        return [parse_metrics(text) or ServerMetrics() for text in texts]

    async def empty(self) -> None:
        """Waits until nothing runs, then forgets all prefixes. Raises ServersBusyError."""
        deadline_s = time.monotonic() + _IDLE_WITHIN_S
        while any(one.running or one.waiting for one in await self.metrics()):
            if time.monotonic() > deadline_s:
                raise ServersBusyError(f"a server still had work {_IDLE_WITHIN_S:.0f} s after the last arm")
            await asyncio.sleep(0.2)
        async with aiohttp.ClientSession() as session:
            for url in self._urls:
                async with session.post(f"{url}/reset_prefix_cache?reset_external=true") as response:
                    if response.status != 200:
                        raise ServersBusyError(
                            f"{url}/reset_prefix_cache answered {response.status}: start the server with "
                            "VLLM_SERVER_DEV_MODE=1"
                        )

    @staticmethod
    async def _get(session: aiohttp.ClientSession, url: str) -> str:
        async with session.get(url) as response:
            return await response.text()


class RouterBench:
    def __init__(self, arguments: argparse.Namespace, load: Load) -> None:
        self._arguments = arguments
        self._load = load
        self._urls: list[str] = arguments.urls
        self._servers = Servers(arguments.urls)
        self._spent_s: dict[str, float] = {}  # of an arm's sessions together, as the gateway tells it
        self._vocabulary = len(load_tokenizer(arguments.model_dir))

    async def run_arm(self, arm: str) -> dict[str, Any]:
        await self._servers.empty()
        self._spent_s = {}
        before = await self._servers.metrics()
        cpu_s, wall = time.process_time(), time.time()
        async with AsyncExitStack() as stack:
            target = await self._target(arm, stack)
            lag = LoopLag()
            try:
                summary = await AgentLoad(self._load, target).run(self._arguments.time_limit_s)
                lagged = lag.take()
            finally:
                lag.close()
        after = await self._servers.metrics()
        return {
            "arm": arm,
            "workload": self._load.digest,
            "options": asdict(self._load.options),
            "engines": len(self._urls),
            "kv_capacity_tokens": [one.kv_capacity_tokens for one in after],
            "began": round(wall, 1),
            **summary,
            **lagged,
            "spent_s": {name: round(spent_s, 1) for name, spent_s in self._spent_s.items()},
            "router": asdict(router_config(arm)) if arm not in (DIRECT, *OTHERS) else None,
            "client_and_gateway_cpu_s": round(time.process_time() - cpu_s, 2),
            **{
                name: [getattr(late, name) - getattr(early, name) for early, late in zip(before, after, strict=True)]
                for name in _COUNTED
            },
        }

    async def _target(self, arm: str, stack: AsyncExitStack) -> Target:
        words = self._vocabulary
        if arm == DIRECT:
            body = {**VLLM_BODY, "logprobs": True, "return_token_ids": True}
            return engines_target(self._urls, await served_model(self._urls[0]), words, body)
        if arm in OTHERS:
            url = await self._vllm_router(arm, stack)
            return router_target(url, await served_model(self._urls[0]), words, None)
        return await self._gateway_target(arm, stack)

    async def _vllm_router(self, arm: str, stack: AsyncExitStack) -> str:
        arguments = self._arguments
        if arm == "vllm_router":
            capacity = min(one.kv_capacity_tokens for one in await self._servers.metrics())
            after = program_scheduling(capacity, **json.loads(arguments.vllm_router_config))
        else:
            after = ("--policy", "sticky_least_loaded")
        if arguments.peers is None:
            raise PeerError(f"arm {arm} needs --peers: a folder with the program {VLLM_ROUTER}")
        command = Peer(arm, VLLM_ROUTER, after=after).command(arguments.peers, [base_url(url) for url in self._urls])
        log = arguments.out.with_suffix(f".{arm}.log")
        return await stack.enter_async_context(process(command, free_port(), log))

    async def _gateway_target(self, arm: str, stack: AsyncExitStack) -> Target:
        gateway, _ = await open_gateway(
            stack,
            self._urls,
            self._arguments.model_dir,
            arm,
            max_num_seqs=self._arguments.max_num_seqs,
            max_model_len=self._load.max_context_tokens,
        )
        return self._sessions(gateway)

    def _sessions(self, gateway: Gateway) -> Target:
        """As a rollout uses the gateway: a session is opened, and closed when its trajectory ends."""
        longest = self._load.max_context_tokens

        async def begin(program: SimulatedProgram) -> None:
            settings = SessionSettings(longest, longest, group_id=program.group)
            gateway.open_session(program.program_id, settings)

        async def end(program: SimulatedProgram) -> None:
            summary = await gateway.close_session(program.program_id)
            for name, spent_s in summary.times_s.items():
                self._spent_s[name] = self._spent_s.get(name, 0.0) + spent_s

        return Target(
            lambda program, _: gateway.session_url(program.program_id),
            MODEL,
            self._vocabulary,
            begin=begin,
            end=end,
            all_begun=lambda: gateway.tail(True),
        )


def table(lines: Sequence[dict[str, Any]]) -> str:
    """One row an arm: means over its repeats, against the first arm's tokens a second."""
    arms = list(dict.fromkeys(line["arm"] for line in lines))
    rows = [f"{'arm':<24} {'runs':>4} {'tokens/s':>9} {'x first':>8} {'makespan s':>10} {'cached':>7} "
            f"{'turn p50':>8} {'p99 s':>7} {'90% done':>8} {'errors':>6}"]  # fmt: skip
    base = 0.0
    for arm in arms:
        own = [line for line in lines if line["arm"] == arm]
        rate = _mean(own, "tokens_per_s")
        base = base or rate
        spread = f"{rate / base:8.3f}" if base else f"{'-':>8}"
        rows.append(
            f"{arm:<24} {len(own):>4} {rate:>9.1f} {spread} {_mean(own, 'makespan_s'):>10.1f} "
            f"{100 * _mean(own, 'cached_share'):>6.1f}% {_mean(own, 'turn_p50_s'):>8.2f} "
            f"{_mean(own, 'turn_p99_s'):>7.1f} {_mean(own, 'most_ended_s'):>8.1f} "
            f"{sum(line['num_errors'] for line in own):>6}"
            + ("" if all(line["complete"] for line in own) else "  (cut)")
        )
    return "\n".join(rows)


def _mean(lines: Sequence[dict[str, Any]], name: str) -> float:
    return sum(float(line[name]) for line in lines) / len(lines)


def _turned(arms: Sequence[str], by: int) -> list[str]:
    by %= len(arms)
    return [*arms[by:], *arms[:by]]


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare routers on running vLLM servers.")
    parser.add_argument("--url", action="append", dest="urls", required=True, help="of one server; repeat it")
    parser.add_argument("--model-dir", type=Path, required=True, help="the folder that the servers were started with")
    parser.add_argument("--arms", default=" ".join(ARMS), help="separated by blanks")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--time-limit-s", type=float, help="of one arm")
    parser.add_argument("--total-limit-s", type=float, help="no arm begins after it")
    parser.add_argument("--max-num-seqs", type=int, default=256, help="that the servers were started with")
    parser.add_argument("--peers", type=Path, help=f"a folder with the program {VLLM_ROUTER}, for its arms")
    parser.add_argument("--vllm-router-config", default="{}", help="JSON: more of its program scheduling's settings")
    parser.add_argument("--out", type=Path, default=Path("router_bench.jsonl"))
    add_load_options(parser)
    return parser.parse_args(words)


async def _main(arguments: argparse.Namespace) -> None:
    load = make_load(load_options(arguments))
    print(load.describe(), flush=True)
    bench, arms, lines = RouterBench(arguments, load), arguments.arms.split(), []
    for arm in arms:
        if arm not in (DIRECT, *OTHERS):
            router_config(arm)  # an arm that does not exist is told before any runs
    began_s = time.monotonic()
    for repeat in range(arguments.repeats):
        for arm in _turned(arms, repeat):
            if arguments.total_limit_s and time.monotonic() - began_s > arguments.total_limit_s:
                print(f"left out for want of time: {arm}, repeat {repeat}", flush=True)
                continue
            line = {"repeat": repeat, **await bench.run_arm(arm)}
            lines.append(line)
            with arguments.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
            print(f"{arm}: {line['tokens_per_s']} tokens/s in {line['makespan_s']} s", flush=True)
    lines.sort(key=lambda line: arms.index(line["arm"]))
    print(table(lines))


if __name__ == "__main__":
    run_to_end(_main(parse(sys.argv[1:])))
