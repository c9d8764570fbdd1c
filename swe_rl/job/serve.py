"""`job=serve`: engines, router and gateway stay up for any OpenAI client, until Ctrl-C.

Invariants:
- Beyond loopback a key is needed: SWE_RL_GATEWAY_KEY, or one that is made for this run. It is printed to the terminal
  and written nowhere.
- When it ends, nothing is left running; its traces and events are in the run's folder.
- It ends by itself only when no engine will serve again.
"""

import asyncio
import json
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from swe_rl.config.schema import Config
from swe_rl.engine.protocol import EngineError
from swe_rl.engine.watch import watched
from swe_rl.host.loopback import is_loopback
from swe_rl.job import event_loop
from swe_rl.job.components import Serving, load_sampled, serving
from swe_rl.job.serve_state import ServeState
from swe_rl.job.session import Session, session

VARIABLE = "SWE_RL_GATEWAY_KEY"
_LOOK_S = 1.0
_TELL_EVERY_S = 10.0  # without a live terminal


def run(config: Config, folder: Path | None) -> int:
    assert folder is not None
    state = ServeState(time.monotonic())
    with session(config, folder, total_steps=0, reports=False, state=state) as one:
        event_loop.run(_serve(config, one, state))
    return 0


async def _serve(config: Config, one: Session, state: ServeState) -> None:
    """Raises EngineError when no engine is left."""
    with one.progress.phase("load"):
        model, tokenizer = load_sampled(config)
    key = key_for(config.gateway.host, os.environ)
    async with serving(config, one, model, tokenizer, token=key) as door:
        for line in welcome(config.model.name, door.url, key):
            print(line, flush=True)  # not through the log, which must not have the key
        one.progress.message(f"traces and events: {one.folder.path}")
        one.events.write("serving", url=door.url, model=config.model.name, key=key is not None)
        async with watched(door.engines, one.record):
            await _stay(one, door, state)


async def _stay(one: Session, door: Serving, state: ServeState) -> None:
    told_s, news = time.monotonic(), False
    while not all(getattr(engine, "failed", False) for engine in door.engines):
        now_s = time.monotonic()
        news |= state.look(door.engines, door.gateway.router_state(), now_s)
        if news and now_s - told_s >= _TELL_EVERY_S:
            told_s, news = now_s, False
            one.progress.show()
        one.status.heartbeat()
        await asyncio.sleep(_LOOK_S)
    raise EngineError("No engine is left that serves; engines/*.log in the run's folder say why.")


def key_for(host: str, environ: Mapping[str, str]) -> str | None:
    """None: whoever reaches the address may use it."""
    return environ.get(VARIABLE) or (None if is_loopback(host) else secrets.token_urlsafe(24))


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
