"""A vLLM server without vLLM: its HTTP surface as seen in 0.26 to 0.32, its answers made up, its faults by script.

For tests and for rehearsing a set-up; also a program, `python -m tests.support.fake_vllm.server --model NAME --port N`,
which takes a real server's command line and reads FAKE_VLLM (JSON of `FakeSettings` fields) from the environment.

Invariants:
- Routes, fields, status codes and request ids are those of a real server; nothing is served that the settings deny.
- A client that goes away frees its request at once; a paused server freezes what runs and queues what comes.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from swe_rl.model.adapter import CONFIG_FILE, WEIGHTS_FILE
from tests.support.fake_vllm.memory import FakeReceiver, FakeSleep
from tests.support.fake_vllm.model import (
    BlockCache,
    Decoding,
    FakeModel,
    Reply,
    completion_reply,
    generate_reply,
    metrics_text,
    routed_experts,
)
from tests.support.fake_vllm.settings import FakeSettings, Fault, settings_from

__all__ = ["FakeSettings", "FakeVllm", "Fault"]

TAKES, HAS_TAKEN = "Weights are on their way.", "Weights are here."  # for who watches its log
_GUARDED = ("/v1", "/inference")
_WORKER = "import time; time.sleep(3600)"


@dataclass(slots=True)
class _Running:
    """`decoding` None: not begun."""

    prompt_tokens: int
    decoding: Decoding | None = None
    aborted: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def held_tokens(self) -> int:
        return self.prompt_tokens + (len(self.decoding.ids) if self.decoding else 0)


class FakeVllm:
    """`async with FakeVllm() as fake:` serves at `fake.url` on a free port of 127.0.0.1 until the block is left."""

    def __init__(self, settings: FakeSettings | None = None, *, reply: Reply | None = None, port: int = 0) -> None:
        self.settings = settings or FakeSettings()
        self.model = FakeModel(self.settings.vocab_size, self.settings.logprobs, reply)
        self.requests: list[tuple[str, dict[str, Any]]] = []  # (path, body) of every POST
        self.broken_paths: set[str] = set()  # answer 500
        self.resets_to_refuse = 0  # of the prefix cache
        self.arrival_delay_s = 0.0  # before a request's queue time starts
        self.disconnected = 0
        self.started_s = time.time()
        self.preemptions_total = 0
        self.url = ""
        self.sleep = FakeSleep(self.settings.sleep_mode, lambda path, query: self.requests.append((path, {**query})))
        self.receiver = FakeReceiver(self.settings.receives, self.settings.tensor_delay_s)
        self.adapters: dict[str, str] = {}  # folders, by the names under which they are served
        self._port = port
        self._faults: list[Fault] = []
        self._cache = BlockCache(self.settings.kv_capacity_tokens, self.settings.block_size)
        # The tier in the host's memory has a copy of each block; only `reset_external` empties it.
        self._host = BlockCache(self.settings.host_capacity_tokens, self.settings.block_size)
        self._slots = asyncio.Semaphore(self.settings.max_num_seqs)
        self._running: dict[str, _Running] = {}
        self._waiting = 0
        self._sampled_total = self._prompt_total = 0
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._runner: web.AppRunner | None = None

    def fail_next(self, *faults: Fault) -> None:
        self._faults += faults

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def paused(self) -> bool:
        return not self._unpaused.is_set()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**28, middlewares=[self._guard])
        self._add_routes(app)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def restart(self) -> None:
        """As if the process had been replaced: the first weights, an empty cache, a new start time."""
        self.started_s += 1.0
        self.model.weights = "default"
        self.adapters.clear()
        self._cache.clear()
        self.sleep.asleep.clear()
        self._unpaused.set()

    def _add_routes(self, app: web.Application) -> None:
        settings, router = self.settings, app.router
        router.add_get("/health", _empty)
        router.add_get("/version", self._get({"version": settings.version}))
        card = {
            "id": settings.model,
            "object": "model",
            "root": settings.model,
            "max_model_len": settings.max_model_len,
        }
        router.add_get("/v1/models", self._get({"object": "list", "data": [card]}))
        if settings.metrics:
            router.add_get("/metrics", self._metrics)
        if settings.completions:
            router.add_post("/v1/completions", self._completions)
        if settings.generate:
            router.add_post("/inference/v1/generate", self._generate)
            router.add_post("/inference/v1/abort_requests", self._abort)
        if settings.adapters:
            router.add_post("/v1/load_lora_adapter", self._load_adapter)
            router.add_post("/v1/unload_lora_adapter", self._unload_adapter)
        if settings.dev_mode:
            for path, handler in self._dev_routes().items():
                router.add_post(path, handler)
            router.add_get("/is_paused", self._is_paused)
            router.add_get("/is_sleeping", self.sleep.is_sleeping)
            router.add_get("/weight_info", self._weight_info)
            router.add_get("/get_world_size", self._get({"world_size": settings.workers}))

    def _dev_routes(self) -> dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]]:
        done = self._noted({"message": "done"})
        return {
            "/pause": self._pause,
            "/resume": self._resume,
            "/abort_requests": self._abort,
            "/collective_rpc": self._rpc,
            "/update_weight_version": self._set_version,
            "/finish_weight_update": self._finish,
            "/reset_prefix_cache": self._reset,
            "/init_weight_transfer_engine": self._initialise,
            "/start_weight_update": done,
            "/update_weights": self._take,
            **self.sleep.routes(),
        }

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        key = self.settings.api_key
        if key and request.path.startswith(_GUARDED) and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if request.path in self.broken_paths:
            return _error(500, "by script")
        if missing := self.sleep.missing(request.path):
            return _error(500, f"the memory of {missing} is asleep")
        return await handler(request)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        prompt = body["prompt"]
        return await self._serve(request, prompt, body, body, f"cmpl-{body.get('request_id')}-0")

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        server_id = f"generate-tokens-{body.get('request_id')}"
        return await self._serve(request, body["token_ids"], body["sampling_params"], body, server_id)

    async def _serve(
        self, request: web.Request, prompt: list[int], sampling: dict[str, Any], body: dict[str, Any], server_id: str
    ) -> web.StreamResponse:
        refused = await self._refusal(request, prompt, body)
        if refused is not None:
            return refused
        await asyncio.sleep(self.arrival_delay_s)
        salt, queued_s = str(body.get("cache_salt") or ""), time.monotonic()
        entry = _Running(len(prompt))
        try:
            self._waiting += 1
            try:
                await self._slots.acquire()
            finally:
                self._waiting -= 1
            self._running[server_id] = entry
            try:
                await self._unpaused.wait()
                started_s = time.monotonic()
                cached = max(self._cache.use(prompt, salt), self._host.use(prompt, salt))
                room = self.settings.max_model_len - len(prompt)
                entry.decoding = decoding = Decoding(self.model, prompt, sampling, room)
                first_s = await self._decode(entry, decoding)
            finally:
                del self._running[server_id]
                self._slots.release()
        except asyncio.CancelledError:
            self.disconnected += 1
            raise
        ids, reason = decoding.ids, decoding.reason or "abort"
        self._cache.keep([*prompt, *ids], salt)
        self._host.keep([*prompt, *ids], salt)
        self._sampled_total += len(ids)
        self._prompt_total += len(prompt)
        logprobs = [self.model.logprob(len(prompt) + at, token, sampling) for at, token in enumerate(ids)]
        times = (started_s - queued_s, first_s - started_s, time.monotonic() - first_s)
        usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": {"cached_tokens": cached}}
        if request.path == "/v1/completions":
            reply = completion_reply(self.settings, prompt, ids, logprobs, reason, usage, times)
        else:
            reply = generate_reply(self.settings, prompt, ids, logprobs, reason, usage, decoding.spans)
        start = sampling.get("routed_experts_prompt_start", 0) if self.settings.routes_start else 0
        reply["choices"][0]["routed_experts"] = routed_experts(self.settings, [*prompt, *ids], start)
        return web.json_response(reply)

    async def _refusal(
        self, request: web.Request, prompt: list[int], body: dict[str, Any]
    ) -> web.StreamResponse | None:
        settings = self.settings
        if self._faults:
            fault = self._faults.pop(0)
            await asyncio.sleep(fault.after_s)
            if not fault.status:
                assert request.transport is not None
                request.transport.abort()
                return _error(500, "cut")
            if fault.body is not None:
                return web.Response(status=fault.status, text=fault.body, content_type="application/json")
            return _error(fault.status, "by script")
        if body.get("model") not in (None, settings.model, *self.adapters):
            return _error(404, f"The model `{body['model']}` does not exist.")
        if len(prompt) >= settings.max_model_len:
            return _error(400, f"This model's maximum context length is {settings.max_model_len} tokens. However, ...")
        if any(token >= settings.vocab_size for token in prompt):
            return _error(400, f"Token id {max(prompt)} is out of vocabulary")
        return None

    async def _decode(self, entry: _Running, decoding: Decoding) -> float:
        """Up to its end or an abort; returns when the first token was there."""
        first_s = time.monotonic()
        while decoding.reason is None:
            await self._unpaused.wait()
            if self.settings.token_delay_s:
                await asyncio.sleep(self.settings.token_delay_s)
            if entry.aborted.is_set():
                break
            decoding.step()
            if len(decoding.ids) == 1:
                first_s = time.monotonic()
        return first_s

    async def _body(self, request: web.Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json() if request.can_read_body else {}
        self.requests.append((request.path, body))
        return body

    def _get(self, answer: dict[str, Any]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(_: web.Request) -> web.StreamResponse:
            return web.json_response(answer)

        return handle

    def _noted(self, answer: dict[str, Any]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            await self._body(request)
            return web.json_response(answer)

        return handle

    async def _pause(self, request: web.Request) -> web.StreamResponse:
        await self._body(request)
        self._unpaused.clear()
        return web.json_response({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.StreamResponse:
        await self._body(request)
        self._unpaused.set()
        return web.json_response({"status": "resumed"})

    async def _is_paused(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"is_paused": self.paused})

    async def _abort(self, request: web.Request) -> web.StreamResponse:
        for server_id in (await self._body(request)).get("request_ids") or list(self._running):
            if server_id in self._running:
                self._running[server_id].aborted.set()
        return web.json_response({"status": "aborted"})

    async def _rpc(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if body.get("method") == "reload_weights":
            self.model.weights = body["kwargs"]["weights_path"]
        return web.json_response({"results": [None]})

    async def _load_adapter(self, request: web.Request) -> web.StreamResponse:
        """What is sampled from then on is of this adapter, whoever asks: a driver asks for the newest one only."""
        body = await self._body(request)
        if not _holds_adapter(Path(body["lora_path"])):
            return _error(404, f"Loading lora {body['lora_name']} failed: No adapter found for {body['lora_path']}")
        self.adapters[body["lora_name"]] = self.model.weights = body["lora_path"]
        return web.Response(text=f"Success: LoRA adapter '{body['lora_name']}' added successfully.")

    async def _unload_adapter(self, request: web.Request) -> web.StreamResponse:
        name = (await self._body(request))["lora_name"]
        if self.adapters.pop(name, None) is None:
            return _error(404, f"The lora adapter '{name}' cannot be found.")
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def _initialise(self, request: web.Request) -> web.StreamResponse:
        info = (await self._body(request)).get("init_info", {})
        await asyncio.to_thread(self.receiver.initialise, info)
        return web.json_response({"message": "done"})

    async def _take(self, request: web.Request) -> web.StreamResponse:
        info = (await self._body(request)).get("update_info", {})
        if self.settings.receives:
            print(TAKES, flush=True)
        await asyncio.to_thread(self.receiver.take, info)
        if self.settings.receives:
            print(HAS_TAKEN, flush=True)
        return web.json_response({"message": "done"})

    async def _finish(self, request: web.Request) -> web.StreamResponse:
        self.receiver.finish()
        return await self._set_version(request)

    async def _set_version(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        self.model.weights = body.get("new_version") or body.get("weight_version") or self.model.weights
        return web.json_response({"success": True})

    async def _weight_info(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"weight_version": self.model.weights})

    async def _reset(self, request: web.Request) -> web.StreamResponse:
        await self._body(request)
        if self.resets_to_refuse:
            self.resets_to_refuse -= 1
            return web.json_response({"success": False})
        self._cache.clear()
        if request.query.get("reset_external") == "true":
            self._host.clear()
        return web.json_response({"success": True})

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        held = sum(entry.held_tokens for entry in self._running.values())
        values = {
            "num_requests_running": len(self._running),
            "num_requests_waiting": self._waiting,
            "kv_cache_usage_perc": min(1.0, held / self.settings.kv_capacity_tokens),
            "num_preemptions_total": self.preemptions_total,
            "prefix_cache_queries_total": self._cache.queries_tokens,
            "prefix_cache_hits_total": self._cache.hits_tokens,
            "prompt_tokens_total": self._prompt_total,
            "generation_tokens_total": self._sampled_total,
        }
        return web.Response(text=metrics_text(self.settings, values, self.started_s))


def _holds_adapter(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file() and (folder / WEIGHTS_FILE).is_file()


async def _empty(_: web.Request) -> web.StreamResponse:
    return web.Response()


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "Error", "code": status}}, status=status)


async def _run(settings: FakeSettings, port: int) -> None:
    await asyncio.sleep(settings.start_delay_s)
    async with FakeVllm(settings, port=port):
        print("Application startup complete.", flush=True)
        await asyncio.Event().wait()


def main() -> int:
    settings, port, eager = settings_from(sys.argv[1:], dict(os.environ))
    if settings.start_log and not (settings.die_unless_eager and eager):
        print(settings.start_log, flush=True)
    if settings.die_at_start and not (settings.die_unless_eager and eager):
        return settings.die_at_start
    for _ in range(settings.workers - 1):
        subprocess.Popen([sys.executable, "-c", _WORKER], start_new_session=True)
    asyncio.run(_run(settings, port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
