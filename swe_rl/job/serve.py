"""`job=serve` keeps engines, router and gateway up for any client of OpenAI or Anthropic, until Ctrl-C.

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
from swe_rl.engine.engine import Engine, EngineError, EngineState
from swe_rl.engine.watch import watch_engines
from swe_rl.host.addresses import is_loopback
from swe_rl.logger.progress import ProgressState
from swe_rl.logger.progress_text import format_duration
from swe_rl.run import event_loop
from swe_rl.run.components import Serving, load_sampled, start_serving
from swe_rl.run.session import RunSession, open_session

VARIABLE = "SWE_RL_GATEWAY_KEY"
_LOOK_S = 1.0
# It is so without a live terminal.
_TELL_EVERY_S = 10.0
_BAR = 100
_REASON_CHARS = 120


class ServeState(ProgressState):
    """The live line: who is there, what the engines do. The progress bar fills with the engines' KV cache.

    It has no clock of its own; rates are over the time between two looks.
    """

    def __init__(self, started_s: float) -> None:
        super().__init__(total_steps=_BAR)
        self._started_s = started_s
        # These are the time and the tokens sampled until then.
        self._seen: tuple[float, int] | None = None
        self._line = ""
        self.serving = False

    def look(self, engines: Sequence[Engine], router: Mapping[str, Any], now_s: float) -> bool:
        """Tells whether there is something new to show. `router` is its snapshot."""
        stats = [engine.stats() for engine in engines]
        capacity = sum(load.kv_capacity_tokens for load in stats)
        share = 0.0
        if capacity:
            share = sum(load.kv_used_tokens for load in stats) / capacity
        sampled = sum(load.sampled_tokens_total for load in stats)
        rate = self._rate(sampled, now_s)
        health = router.get("health") or [{"state": engine.state.name} for engine in engines]
        up = sum(row["state"] == EngineState.up.name for row in health)
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
                *(f"{row['engine']} {row['state']}: {_short_reason(row)}" for row in health if row.get("reason")),
            ]
        )
        changed = line != self._line
        self._line = line
        self.done_steps = round(_BAR * min(1.0, share))
        self.serving = True
        return changed

    def _rate(self, sampled: int, now_s: float) -> float:
        before = self._seen
        self._seen = (now_s, sampled)
        if before is None or now_s <= before[0]:
            return 0.0
        return max(0, sampled - before[1]) / (now_s - before[0])

    def headline(self, now_s: float) -> str:
        if self.serving:
            return f"serving {format_duration(now_s - self._started_s)}  {self._line}"
        return self.at_work(now_s) or "starting"

    def collection(self, now_s: float) -> str | None:
        return None


def _short_reason(row: Mapping[str, Any]) -> str:
    text = " ".join(str(row["reason"]).split())
    if len(text) <= _REASON_CHARS:
        return text
    return f"{text[:_REASON_CHARS]}..."


def run(config: Config, folder: Path | None) -> int:
    assert folder is not None
    state = ServeState(time.monotonic())
    with open_session(config, folder, total_steps=0, reports=False, state=state) as run_session:
        event_loop.run_job(_serve_model(config, run_session, state))
    return 0


async def _serve_model(config: Config, session: RunSession, state: ServeState) -> None:
    """Serves. Raises EngineError when no engine is left, TraceStoreError or DiskError when the disk takes no more."""
    with session.progress.phase("load"):
        model, tokenizer = load_sampled(config)
    key = key_for(config.gateway.host, os.environ)
    async with start_serving(config, session, model, tokenizer, token=key) as door:
        for line in welcome_lines(config.model.name, door.url, key):
            # It does not go through the log, which must not have the key.
            print(line, flush=True)
        session.progress.message(f"traces and events: {session.folder.path}")
        session.events.write("serving", url=door.url, model=config.model.name, key=key is not None)
        async with watch_engines(door.engines, session.record):
            await _watch_engines(session, door, state)


async def _watch_engines(session: RunSession, door: Serving, state: ServeState) -> None:
    told_s = time.monotonic()
    news = False
    while not all(engine.state is EngineState.gone for engine in door.engines):
        now_s = time.monotonic()
        news |= state.look(door.engines, door.gateway.router_state(), now_s)
        if news and now_s - told_s >= _TELL_EVERY_S:
            told_s = now_s
            news = False
            session.progress.show()
        session.status.heartbeat()
        door.store.check()
        await asyncio.sleep(_LOOK_S)
    reasons = "; ".join(str(engine.why_lost) for engine in door.engines)
    raise EngineError(f"No engine is left that serves: {reasons}. What servers wrote is in engines/*.log of the run.")


def key_for(host: str, environ: Mapping[str, str]) -> str | None:
    """Returns the key; None: whoever reaches the address may use it."""
    return key_of(environ, VARIABLE) or (None if is_loopback(host) else secrets.token_urlsafe(24))


def welcome_lines(model: str, url: str, key: str | None) -> list[str]:
    """Returns what somebody needs to send a first request."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64})
    authorization = ""
    if key:
        authorization = f" -H 'Authorization: Bearer {key}'"
    return [
        f"base URL   {url}",
        f"API key    {key or 'none is needed (OpenAI clients want any text)'}",
        f"model      {model}",
        f"try        curl {url}/chat/completions{authorization} -H 'Content-Type: application/json' -d '{body}'",
        "stop       Ctrl-C",
    ]
