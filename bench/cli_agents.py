"""Agents that others wrote, each the real program in a bubblewrap sandbox without network, at one instance of env=bugs.

    python -m bench.cli_agents [AGENT:DIALECT:CASE ...] [--path opencode=FOLDER]

The model is a script; gateway, sandbox, grading and rows are those of a run. Prints a line of a table for each: `solve`
(with two calls at once), `limit` (the gateway's, of calls), `child` (a sub-agent is called), `compact` (the program is
made to think that its window is full). A part that is not given means all. A program that is missing is named.
"""

import argparse
import asyncio
import json
import random
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.cli_programs import PROGRAMS, Program, folders
from swe_rl.agent.client import ChatClient
from swe_rl.agent.make import make_agent
from swe_rl.config.compose import compose
from swe_rl.config.schema import Config
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.instance import Instance
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import Trace
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.tiny import build_tokenizer
from swe_rl.rollout.attempt import Attempter
from swe_rl.rollout.rows import traced_rows
from swe_rl.rollout.trajectory import Order, Trajectory, TrajectoryId
from swe_rl.router.make import make_router
from swe_rl.sandbox.provider import make_provider

CASES = ("solve", "limit", "child", "compact")
CHILD = "Say hello and end."
SUMMARY = "A file is to be changed."
_ASKS = "compaction|compress|summar|state_snapshot"  # programs ask for a summary with these words
_WINDOW_TOKENS = 1_000_000
_LIMIT_CALLS = 3
_HEAD = ("agent", "dialect", "case", "status", "reward", "calls", "rows", "breaks", "seconds", "CPU seconds")


def script(program: Program, case: str, instance: Instance) -> list[dict[str, Any]]:
    """Replies of the model in the conversation that has the task, one after the other."""
    look, fix = program.shell("ls"), program.shell(f"git apply <<'PATCH'\n{instance.patch}PATCH")
    two = {"tool_calls": [*program.shell("seq 9")["tool_calls"], *program.shell("git status --short")["tool_calls"]]}
    end = [fix, program.shell("git status --short"), program.end()]
    if case == "limit":
        return [look] * 50
    if case == "child":
        assert program.child
        return [program.child(CHILD), *end]
    if case == "compact":
        return [look, program.shell("seq 6000"), look, *end]
    return [{"content": "I look.", "reasoning_content": "Hm.", **two}, *end]


@dataclass
class Policy:
    """Which reply is due follows from what was asked before: requests that begin another conversation take none."""

    renderer: ChatRenderer
    replies: list[dict[str, Any]]
    given: int = 0
    prompts: list[int] = field(default_factory=list)  # their tokens

    def __call__(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        self.prompts.append(len(prompt_ids))
        return self.renderer.reply({"role": "assistant", "content": "", **self._due(self.renderer.decode(prompt_ids))})

    def _due(self, text: str) -> dict[str, Any]:
        talk = text[text.find("<|im_start|>user") :]
        if CHILD in talk and "<tool_call>" not in talk:
            return {"content": "Hello."}
        asked = talk[talk.rfind("<|im_start|>user") :]
        if SUMMARY not in asked and "<tool_response>" not in asked and re.search(_ASKS, asked, re.IGNORECASE):
            return {"content": SUMMARY}
        self.given += 1
        return self.replies[min(self.given, len(self.replies)) - 1]


@dataclass(frozen=True)
class Seen:
    trajectory: Trajectory
    traces: list[Trace]
    num_rows: int
    wall_s: float
    cpu_s: float

    def line(self, program: Program, version: str, dialect: str, case: str) -> str:
        breaks = Counter(str(trace.break_kind) for trace in self.traces if trace.break_kind)
        named = ", ".join(f"{count} `{kind}`" for kind, count in sorted(breaks.items())) or "none"
        reward, calls = self.trajectory.reward, self.trajectory.num_calls
        cells = (
            f"{program.name} {version}",
            dialect,
            case,
            self.trajectory.status,
            reward,
            calls,
            self.num_rows,
            named,
        )
        return f"| {' | '.join(map(str, cells))} | {self.wall_s:.1f} | {self.cpu_s:.1f} |"


def config_of(program: Program, dialect: str, case: str, folder: Path) -> Config:
    return compose([
        f"agent={program.name}", "env=bugs", "sandbox=process", f"agent.program_path={folder}",
        *program.overrides(dialect, case), "sandbox.memory_gb=16", "sandbox.max_processes=256",
        f"sandbox.mounts={json.dumps(folders(folder / program.program))}", "rollout.max_turn_tokens=20000",
        f"rollout.max_turns={_LIMIT_CALLS if case == 'limit' else 30}", "rollout.agent_timeout_s=300",
        f"rollout.max_trajectory_tokens={_WINDOW_TOKENS}", f"rollout.max_prompt_tokens={_WINDOW_TOKENS}",
    ]).config  # fmt: skip


async def attempt(program: Program, dialect: str, case: str, folder: Path, root: Path) -> Seen:
    """By the class that a run makes its attempts with."""
    config = config_of(program, dialect, case, folder)
    env = BugsEnv(config.env, root / "workspaces")
    instance = env.instances("heldout")[0]
    renderer = ChatRenderer(build_tokenizer(["def add(a, b):\n    return a + b\n"] * 3, 400), template="qwen_plain")
    policy = Policy(renderer, script(program, case, instance))
    engine = ScriptedEngine(policy, max_model_len=_WINDOW_TOKENS)
    rollout = config.rollout
    async with AsyncExitStack() as stack:
        store = TraceStore(root / "traces.db")
        stack.callback(store.close)
        gateway = Gateway(
            [engine], make_router(config.router, [engine]), renderer, store,
            model_name="tiny", config=config.gateway, max_model_len=_WINDOW_TOKENS,
        )  # fmt: skip
        stack.push_async_callback(gateway.close)
        await gateway.start()
        sandboxes = make_provider(config.sandbox, root / "scratch", print)
        stack.push_async_callback(sandboxes.close)
        client = ChatClient(rng=random.Random(0), max_retries=0)
        stack.push_async_callback(client.close)
        agent = make_agent(config.agent, rollout, client)
        attempter = Attempter(env, agent, gateway, sandboxes, rollout, config.env, model_name="tiny")
        limits = SessionSettings(rollout.max_turn_tokens, rollout.max_trajectory_tokens, rollout.max_prompt_tokens)
        order = Order(instance, TrajectoryId("heldout", 0, instance.instance_id, 0, 0), limits)
        began_s, cpu_s = time.monotonic(), _cpu_s()
        trajectory, result = await attempter.run(order)
        wall_s, cpu_s = time.monotonic() - began_s, _cpu_s() - cpu_s
        traces = store.traces(order.trajectory_id)
    _say(trajectory, policy)
    return Seen(trajectory, traces, len(traced_rows(trajectory, traces)), wall_s, cpu_s)


def _cpu_s() -> float:
    """Of this process and those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _say(trajectory: Trajectory, policy: Policy) -> None:
    for turn in trajectory.turns:
        print(
            f"  {turn.message[:80]!r} {(turn.command or '')[:80]!r} {(turn.observation or '')[-200:]!r}",
            file=sys.stderr,
        )
    print(f"  prompts of {policy.prompts} tokens; error: {trajectory.error}", file=sys.stderr)


def version_of(program: Program, folder: Path) -> str:
    said = subprocess.run([folder / program.program, *program.version], capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+\S*", said.stdout)
    return found[0] if found else "of no known version"


def wanted(names: Sequence[str]) -> list[tuple[Program, str, str]]:
    """Of AGENT:DIALECT:CASE, any part of which may be left out or empty."""
    asked = [tuple([*name.split(":"), "", ""][:3]) for name in names or [""]]
    every = [(program, dialect, case) for program in PROGRAMS for dialect in program.dialects for case in CASES]
    return [
        (program, dialect, case)
        for program, dialect, case in every
        if case in program.cases(dialect)
        and any(all(a in ("", b) for a, b in zip(one, (program.name, dialect, case), strict=True)) for one in asked)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="AGENT:DIALECT:CASE")
    parser.add_argument("--path", action="append", default=[], metavar="AGENT=FOLDER", help="where its program is")
    options = parser.parse_args()
    paths = dict(path.split("=", 1) for path in options.path)
    print(f"| {' | '.join(_HEAD)} |\n|{'---|' * len(_HEAD)}", flush=True)
    for program, dialect, case in wanted(options.names):
        folder = Path(paths[program.name]) if program.name in paths else program.found()
        if folder is None or not (folder / program.program).exists():
            print(f"{program.name} is not installed", file=sys.stderr)
            continue
        print(f"{program.name}:{dialect}:{case}", file=sys.stderr)
        with TemporaryDirectory() as root:
            seen = asyncio.run(attempt(program, dialect, case, folder, Path(root)))
        print(seen.line(program, version_of(program, folder), dialect, case), flush=True)


if __name__ == "__main__":
    main()
