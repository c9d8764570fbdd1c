"""A policy by script behind vLLM's HTTP surface, with faults on demand: the engine of bench/sandbox_soak.py.

    python -m bench.soak_engine --port 8300 --think-s 10 --turns 20

POST /soak takes {"fault": NAME}, which befalls the next completion, or {"say": COMMAND}, which is what the policy says
next, whoever asks.

Invariants:
- A first turn writes the right patch, a wrong one or none; later ones run light commands until one submits.
- Nothing of a request is kept.
"""

import argparse
import asyncio
import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from swe_rl.config.compose import compose
from swe_rl.engine.fake_vllm.server import FakeSettings, FakeVllm, Fault
from swe_rl.env.bugs.env import DATA
from swe_rl.env.instance import Instance
from swe_rl.env.records import read_instances
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.load import load_tokenizer

INSTANCES = 16
MAX_TOKENS = 8192
FAULTS = {
    "engine_500": Fault(500),
    "engine_broken_json": Fault(200, '{"choices": [{"token_ids": [1, '),
    "engine_cut": Fault(0),
}
FIX = "git apply - <<'END'"
_NOTE = "echo '# a note' >> $(git ls-files '*.py' | head -1)"
_LIGHT = ("ls", "pwd; git status --short | head -3", "head -n 3 $(git ls-files '*.py' | head -1)", "true")
_SLEEPS = 0.25  # of the turns
_SLEEP_S = (3, 8)
_PROSE = 0.02
_SPREAD = 0.5  # of the time of a reply, to both sides


def soak_instances() -> list[Instance]:
    """Those with the shortest patches: replies of few tokens."""
    return sorted(read_instances(DATA / "train.jsonl"), key=lambda one: len(one.patch))[:INSTANCES]


class Policy:
    """`said(prompt)`: the text of a reply. `turns`: of a trajectory, on average."""

    def __init__(self, instances: Sequence[Instance], rng: random.Random, turns: int) -> None:
        self._patches = {one.problem_statement: one.patch for one in instances}
        self._rng = rng
        self._turns = turns
        self.next: deque[str] = deque()

    def said(self, prompt: str) -> str:
        if self.next:
            return _block(self.next.popleft())
        if prompt.count("<|im_start|>assistant") == 1:
            return _block(self._first(prompt))
        if self._rng.random() < _PROSE:
            return "I would rather talk."
        if self._rng.random() < 1 / self._turns:
            return _block("submit")
        asleep = self._rng.random() < _SLEEPS
        return _block(f"sleep {self._rng.randint(*_SLEEP_S)}" if asleep else self._rng.choice(_LIGHT))

    def _first(self, prompt: str) -> str:
        patch = next(patch for statement, patch in self._patches.items() if statement in prompt)
        return self._rng.choice((f"{FIX}\n{patch}END", f"{FIX}\n{patch}END", _NOTE, "true"))


class SoakEngine(FakeVllm):
    def __init__(self, policy: Policy, settings: FakeSettings, *, think_s: float, seed: int, port: int) -> None:
        renderer = ChatRenderer(load_tokenizer(compose([]).config.model), template="qwen_plain")

        def reply(prompt_ids: Sequence[int]) -> Sequence[int]:
            said = policy.said(renderer.decode(prompt_ids))
            return renderer.reply({"role": "assistant", "content": said})

        super().__init__(settings, reply=reply, port=port)
        self._policy = policy
        self._think_s = think_s
        self._rng = random.Random(seed)

    def _add_routes(self, app: web.Application) -> None:
        super()._add_routes(app)
        app.router.add_post("/soak", self._asked)

    async def _asked(self, request: web.Request) -> web.Response:
        asked = await request.json()
        if "say" in asked:
            self._policy.next.append(asked["say"])
        else:
            self.fail_next(FAULTS[asked["fault"]])
        return web.json_response({})

    async def _body(self, request: web.Request) -> dict[str, Any]:
        body = await super()._body(request)
        self.requests.clear()
        return body

    async def _serve(self, request: web.Request, *rest: Any) -> web.StreamResponse:
        await asyncio.sleep(self._think_s * self._rng.uniform(1 - _SPREAD, 1 + _SPREAD))
        return await super()._serve(request, *rest)


def _block(command: str) -> str:
    return f"```bash\n{command}\n```"


async def _run(arguments: argparse.Namespace) -> None:
    settings = FakeSettings(max_model_len=MAX_TOKENS, max_num_seqs=4096, vocab_size=compose([]).config.model.vocab_size)
    policy = Policy(soak_instances(), random.Random(arguments.seed), arguments.turns)
    engine = SoakEngine(policy, settings, think_s=arguments.think_s, seed=arguments.seed, port=arguments.port)
    async with engine:
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A policy by script behind vLLM's HTTP surface.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--think-s", type=float, default=10.0, help="of a reply, on average")
    parser.add_argument("--turns", type=int, default=20, help="of a trajectory, on average")
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
