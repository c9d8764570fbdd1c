"""`job=serve`: engines, router and gateway stay up for any client of OpenAI or Anthropic, until Ctrl-C.

Invariants:
- Beyond loopback a key is needed: SWE_RL_GATEWAY_KEY, or one that is made for this run. It is printed to the terminal
  and written nowhere.
- When it ends, nothing is left running; its traces and events are in the run's folder.
- It ends by itself only when no engine will serve again, or when nothing can be recorded any more.
"""

import asyncio
import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swe_rl.config.environment import key_of
from swe_rl.config.schema import Config
from swe_rl.engine.protocol import Engine, EngineError, EngineState
from swe_rl.engine.watch import watched
from swe_rl.host.addresses import is_loopback
from swe_rl.logger.progress import ProgressState
from swe_rl.logger.progress_text import duration
from swe_rl.run import event_loop
from swe_rl.run.components import Serving, load_sampled, serving
from swe_rl.run.session import Session, session

VARIABLE = "SWE_RL_GATEWAY_KEY"
_LOOK_S = 1.0
_TELL_EVERY_S = 10.0  # without a live terminal
_BAR = 100


class ServeState(ProgressState):
    """The live line: who is there, what the engines do. The progress bar fills with the engines' KV cache.

    It has no clock of its own; rates are over the time between two looks.
    """

    def __init__(self, started_s: float) -> None:
        super().__init__(total_steps=_BAR)
        self._started_s = started_s
        self._seen: tuple[float, int] | None = None  # when, tokens sampled until then
        self._line = ""
        self.serving = False

    def look(self, engines: Sequence[Engine], router: Mapping[str, Any], now_s: float) -> bool:
        """Whether there is something new to show. `router`: its snapshot."""
        stats = [engine.stats() for engine in engines]
        capacity = sum(load.kv_capacity_tokens for load in stats)
        share = sum(load.kv_used_tokens for load in stats) / capacity if capacity else 0.0
        sampled = sum(load.sampled_tokens_total for load in stats)
        rate = self._rate(sampled, now_s)
        up = sum(engine.state is EngineState.up for engine in engines)
        line = "  ".join(
            [
                f"{up}/{len(engines)} engines",
                f"{len(router.get('programs', ()))} programs",
                f"{sum(load.running for load in stats)} running",
                f"{sum(load.waiting for load in stats)} queued",
                f"{router.get('held_requests', router.get('held_programs', 0))} held",
                f"{rate:.0f} sampled tokens/s",
                f"{sampled:,} in all",
                f"KV {share:.0%}",
            ]
        )
        changed, self._line = line != self._line, line
        self.done_steps = round(_BAR * min(1.0, share))
        self.serving = True
        return changed

    def _rate(self, sampled: int, now_s: float) -> float:
        before, self._seen = self._seen, (now_s, sampled)
        if before is None or now_s <= before[0]:
            return 0.0
        return max(0, sampled - before[1]) / (now_s - before[0])

    def headline(self, now_s: float) -> str:
        if self.serving:
            return f"serving {duration(now_s - self._started_s)}  {self._line}"
        return self.at_work(now_s) or "starting"

    def collection(self, now_s: float) -> str | None:
        return None


def run(config: Config, folder: Path | None) -> int:
    assert folder is not None
    state = ServeState(time.monotonic())
    with session(config, folder, total_steps=0, reports=False, state=state) as run_session:
        event_loop.run(_serve(config, run_session, state))
    return 0


async def _serve(config: Config, session: Session, state: ServeState) -> None:
    """Raises EngineError when no engine is left, TraceStoreError or DiskError when the disk takes no more."""
    with session.progress.phase("load"):
        model, tokenizer = load_sampled(config)
    key = key_for(config.gateway.host, os.environ)
    async with serving(config, session, model, tokenizer, token=key) as door:
        for line in welcome(config.model.name, door.url, key):
            print(line, flush=True)  # not through the log, which must not have the key
        session.progress.message(f"traces and events: {session.folder.path}")
        session.events.write("serving", url=door.url, model=config.model.name, key=key is not None)
        async with watched(door.engines, session.record):
            await _stay(session, door, state)


async def _stay(session: Session, door: Serving, state: ServeState) -> None:
    told_s, news = time.monotonic(), False
    while not all(engine.state is EngineState.gone for engine in door.engines):
        now_s = time.monotonic()
        news |= state.look(door.engines, door.gateway.router_state(), now_s)
        if news and now_s - told_s >= _TELL_EVERY_S:
            told_s, news = now_s, False
            session.progress.show()
        session.status.heartbeat()
        door.store.check()
        await asyncio.sleep(_LOOK_S)
    reasons = "; ".join(str(engine.why_lost) for engine in door.engines)
    raise EngineError(f"No engine is left that serves: {reasons}. What servers wrote is in engines/*.log of the run.")


def key_for(host: str, environ: Mapping[str, str]) -> str | None:
    """None: whoever reaches the address may use it."""
    return key_of(environ, VARIABLE) or (None if is_loopback(host) else secrets.token_urlsafe(24))


def welcome(model: str, url: str, key: str | None) -> list[str]:
    """What somebody needs to send a first request."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64})
    authorization = f" -H 'Authorization: Bearer {key}'" if key else ""
    return [
        f"base URL   {url}",
        f"API key    {key or 'none is needed (OpenAI clients want any text)'}",
        f"model      {model}",
        f"try        curl {url}/chat/completions{authorization} -H 'Content-Type: application/json' -d '{body}'",
        "stop       Ctrl-C",
    ]
