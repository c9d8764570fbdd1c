"""Treats one running vLLM server as an engine, whoever started it.

Invariants:
- A request that is in flight when the weights change is aborted in the server, which answers with what it has sampled;
  the rest is asked for after the update, with those tokens at the end of its prompt. What does not answer so is sampled
  anew, and so is a reply of whose tokens the server tells two versions (spans): no reply of a server mixes versions.
- A lost server fails every request that waits for it, at once; requests after that fail too until it is back. One that
  is back with other weights than it should have stays lost.
- While paused here, no request is sent; those already there freeze in the server.
- A server that was put to sleep, or is held, gets its next request after its next update of weights: until then
  requests wait, or fail with the reason where it is lost.
- `close` ends what is in flight and leaves the server running.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rl.engine.engine import (
    Completion,
    ContextOverflowError,
    Engine,
    EngineError,
    EngineState,
    EngineStats,
    SamplingParams,
    UnchangedError,
    continue_params,
    join_completions,
)
from swe_rl.engine.server import wire
from swe_rl.engine.server.client import Carrier, ConnectionLostError, HttpClient
from swe_rl.engine.server.control import KV_CACHE, WEIGHTS, Control, Cuts, InFlight, Interrupted
from swe_rl.engine.server.features import Features, Needs, Patience, probe_server
from swe_rl.engine.server.monitor import Monitor, MonitorCallbacks, ServerMetrics
from swe_rl.engine.server.weights import (
    WeightFolders,
    forget_prefixes,
    load_adapter,
    load_from_folder,
    set_version,
    told_version,
    unload_adapter,
)
from swe_rl.engine.server.wire import MixedError, Reply, as_reply, fit_room, request_body, server_request_id, version_of
from swe_rl.engine.token_ids import TokenIds

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)
_MIXED_TRIES = 8  # A request whose replies mix versions is tried this often: somebody else updates its server.


class HttpEngine(Engine):
    """A server as an engine. `weights` None: its weights cannot be changed from here. The router knows it by `name`."""

    def __init__(
        self,
        client: HttpClient,
        needs: Needs,
        *,
        name: str,
        max_num_seqs: int,
        weights: WeightFolders | None = None,
        patience: Patience | None = None,
        stats_period_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name)
        self.client = client  # also for requests that are no sampling
        self._needs = needs
        self._max_num_seqs = max_num_seqs
        self._weights = weights
        self._patience = patience
        self._stats_period_s = stats_period_s
        self._clock = clock
        self._features: Features | None = None
        self._monitor: Monitor | None = None
        self.in_flight = InFlight(clock)
        self._readmission: asyncio.Task[None] | None = None
        self._control = Control(client)
        self._cuts = Cuts(self._control, self.in_flight)
        self._numbers = count()
        self._nonce = secrets.token_hex(4)
        self.weight_version = 0  # of the weights that the server was started with
        self._adapter: str | None = None  # the model's name in requests, once it is an adapter of the served one
        self._sampled_total = self._prefilled_total = 0

    @property
    def features(self) -> Features:
        """Raises EngineError before `start`."""
        if self._features is None:
            raise EngineError(f"Engine `{self.name}` was not started; await start() first.")
        return self._features

    @property
    def state(self) -> EngineState:
        return EngineState.up if self.in_flight.failure is None else EngineState.lost

    @property
    def why_lost(self) -> EngineError | None:
        return self.in_flight.failure

    async def start(self) -> None:
        """Raises ServerRefusedError, EngineError; the session is then closed again."""
        await self.client.open()
        try:
            self._features = await probe_server(self.client, self._needs, self._patience)
        except BaseException:
            await self.client.close()
            raise
        _log.info("engine %s at %s: %s", self.name, self.client.url, self._features)
        watcher = MonitorCallbacks(lost=self.lose, back=self._came_back, restarted=self._was_restarted)
        path = "/metrics" if self._features.metrics else "/v1/models"
        self._monitor = Monitor(self.client, watcher, path=path, period_s=self._stats_period_s, clock=self._clock)
        await self._monitor.look()
        self._monitor.start()

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, request_id: str, session_id: str | None = None
    ) -> Completion:
        """Raises ContextOverflowError, or EngineError. Cancelling the awaiting task aborts the request.

        What an interruption by new weights has cost counts as `queue_s`.
        """
        limit = min(self._needs.max_model_len, self.features.max_model_len)
        wire.check_room(self.name, request_id, prompt_ids, limit)
        room = limit - len(prompt_ids)
        limited = fit_room(params, room)
        parts = list[Completion]()
        while True:
            part = await self._part(prompt_ids, limited, request_id, parts)
            parts.append(part)
            whole = join_completions(parts)
            if not self._cuts.take(request_id) or part.finish_reason != "abort":
                return whole
            if len(whole.token_ids) == limited.max_tokens:  # cut at its end
                return replace(whole, finish_reason="length")

    async def _part(
        self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str, before: Sequence[Completion]
    ) -> Completion:
        """Returns what follows what was sampled `before`, as far as one request goes."""
        arrived_s = self._clock()
        mixed = 0
        sampled = [token for part in before for token in part.token_ids]
        ids = [*prompt_ids, *sampled] if sampled else prompt_ids
        rest = continue_params(params, len(sampled))
        while True:
            await self._control.passed()
            self.in_flight.check()
            try:
                return await self._generate(ids, rest, request_id, arrived_s)
            except Interrupted:
                continue
            except MixedError as error:
                mixed += 1
                if mixed == _MIXED_TRIES:
                    raise EngineError(f"Engine `{self.name}`: {error}") from error

    async def _generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str, arrived_s: float
    ) -> Completion:
        """Asks once. Raises Interrupted, MixedError, ContextOverflowError, EngineError."""
        features = self.features
        sent_s = self._clock()
        version = self.weight_version
        own_id = f"{self._nonce}-{next(self._numbers)}"
        server_id = server_request_id(features.token_in, own_id)
        body = request_body(
            features.token_in,
            prompt_ids,
            params,
            model=self._adapter or features.model,
            request_id=own_id,
            cache_salt=f"weights-{version}" if version else None,
            routes=self._needs.num_experts > 0,
        )
        try:
            with self._cuts.sent(request_id, server_id):
                reply = await self.in_flight.run(self._asked(body, prompt_ids, params), len(prompt_ids))
        except ContextOverflowError:
            raise
        except EngineError as error:
            if isinstance(error, ConnectionLostError):
                await self._broke_off()
            raise error.about(self.name) from error
        version = version_of(reply, version)
        completion = self._completion(reply, len(prompt_ids), version, sent_s, waited_s=sent_s - arrived_s)
        return replace(completion, routes_from=params.routes_from)

    async def abort(self, request_id: str) -> None:
        server_id = self._cuts.server_id(request_id)
        if server_id is not None:
            await self._control.abort([server_id])

    def stalled_s(self) -> float:
        latest = self._monitor.latest if self._monitor else None
        return self.in_flight.stalled_s(self._sampled_total, latest, self._control.paused)

    def give_up(self, reason: str) -> None:
        self.in_flight.end(EngineError(f"Engine `{self.name}` at {self.client.url} does not answer: {reason}"))

    async def pause(self) -> None:
        """Returns once the server has frozen what runs there. Raises EngineError."""
        self.in_flight.check()
        await self._control.pause(self.features)

    async def resume(self) -> None:
        await self._control.resume(self.features)

    @property
    def held(self) -> bool:
        """True while it waits for weights, asleep or awake."""
        return self._control.held

    @property
    def wake_s(self) -> float:
        return self._control.wake_s

    def hold(self) -> None:
        """Has requests wait for the next update of weights."""
        self._control.hold()

    async def sleep(self) -> None:
        """Makes the server give its GPUs' memory back, weights included; the next update of weights wakes it.

        Raises EngineError; a server that does not fall asleep is lost.
        """
        self.in_flight.check()
        self._control.hold()
        self.in_flight.interrupt()
        self._rest(True)
        try:
            await self._control.sleep(self.features)
        except BaseException as error:
            self.lose(f"it could not be put to sleep: {error or type(error).__name__}")
            raise

    async def update_weights(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        """Updates through a folder that the server reads; what is in flight goes on with the new weights.

        Raises EngineError; a server that fails half-way is lost.
        """
        if self._weights is None or not self.features.reload:
            raise EngineError(
                f"Engine `{self.name}` at {self.client.url} takes no weights: the server needs VLLM_SERVER_DEV_MODE=1 "
                "and a folder that it shares with this process (paths.scratch)"
            )
        await self.take(await self._weights.write(weights, version), version)

    async def take(self, folder: Path, version: int) -> None:
        """Has the server read what `folder` holds: all weights, or an adapter. Raises EngineError."""
        is_adapter = self._weights is not None and self._weights.adapter is not None
        if is_adapter and not self.features.adapters:
            raise EngineError(
                f"Engine `{self.name}` at {self.client.url} takes no adapters: start the server with --enable-lora, "
                "--max-lora-rank, and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or set trainer.lora_serving=merged"
            )
        async with self.renewing(version) as client:
            if is_adapter:
                await self._change_adapter(client, folder)
            else:
                await load_from_folder(client, folder)

    async def _change_adapter(self, client: HttpClient, folder: Path) -> None:
        """Loads the new adapter before the old one goes: a server that cannot load it still has the old one. Each start
        of ours has names of its own, as a server of somebody else's may still hold those of an earlier run."""
        name = f"{self.features.model}-{self._nonce}-{folder.name}"
        await load_adapter(client, name, folder)
        old = self._adapter
        self._adapter = name
        if old is not None:
            await unload_adapter(client, old)

    @asynccontextmanager
    async def renewing(self, version: int) -> AsyncIterator[HttpClient]:
        """Pauses the server inside of the block, which gives it the weights of `version`.

        One that sleeps is woken: the weights' memory before the block, the cache's after it. What is in flight goes on
        with them; a server whose block fails is lost, unless it fails with `UnchangedError`. Raises EngineError.
        """
        held = self._control.held
        was_paused = self._control.paused and not held
        if not was_paused and not self._control.asleep:
            await self._cuts.cut_short()
            await self.pause()
        self.in_flight.interrupt()
        try:
            await self._control.wake(WEIGHTS)
            yield self.client
            await self._control.wake(KV_CACHE)
            await forget_prefixes(self.client)
            await set_version(self.client, self.features, version)
        except UnchangedError:
            if not was_paused and not held:
                await self.resume()
            raise
        except BaseException as error:
            self.lose(f"an update of its weights failed half-way: {error or type(error).__name__}")
            self._control.open_gate()  # what waits there fails with the reason
            raise
        self.stamp(version)
        self._control.release()
        self._rest(False)
        if not was_paused:
            await self.resume()

    async def receiver(self) -> "HttpEngine":
        return self

    async def adopt(self, version: int) -> None:
        """Notes that the server was started with the weights of `version`."""
        await set_version(self.client, self.features, version)
        self.stamp(version)

    def stamp(self, version: int) -> None:
        """Notes that the server holds `version` from now on; what is in flight is sent again.

        It serves updates that do not go through here, too: in a pause, as a reply that the server finishes between its
        update and this call would count for the old weights.
        """
        self.weight_version = version
        self.in_flight.interrupt()

    def stats(self) -> EngineStats:
        """Returns the server's own numbers, `stats_period_s` old at most; without /metrics what is known here."""
        latest = self._monitor.latest if self._monitor else None
        if latest is None:
            held = self.in_flight.tokens
            capacity = self._max_num_seqs * (self._features.max_model_len if self._features else 0)
            latest = ServerMetrics(running=len(self.in_flight), kv_capacity_tokens=capacity)
        else:
            held = round(latest.kv_usage * latest.kv_capacity_tokens)
        return EngineStats(
            running=latest.running,
            waiting=latest.waiting,
            kv_used_tokens=held,
            kv_capacity_tokens=latest.kv_capacity_tokens,
            weight_version=self.weight_version,
            sampled_tokens_total=self._sampled_total,
            prefill_tokens_total=self._prefilled_total,
            preemptions_total=latest.preemptions_total,
            host_capacity_tokens=latest.host_tokens(self._needs.token_bytes),
        )

    async def refresh(self) -> None:
        """Looks at the server's load now."""
        if self._monitor is not None:
            await self._monitor.look()

    def lose(self, reason: str) -> None:
        """Fails what is in flight and what comes, until the server is back."""
        was_up = self.in_flight.failure is None
        self.in_flight.fail(EngineError(f"Engine `{self.name}` at {self.client.url} is lost: {reason}"))
        if was_up:
            self._tell(False)

    async def close(self) -> None:
        """Ends what is in flight. It may be called twice."""
        self.on_change = None
        self.in_flight.fail(self.in_flight.failure or EngineError(f"Engine `{self.name}` is closed."))
        self._control.open_gate()
        if self._readmission is not None:
            self._readmission.cancel()
        if self._monitor is not None:
            await self._monitor.close()
        await self.client.close()

    async def _asked(self, body: Mapping[str, object], prompt_ids: Sequence[int], params: SamplingParams) -> Reply:
        token_in = self.features.token_in
        carrier: Carrier | None = prompt_ids.carrier if isinstance(prompt_ids, TokenIds) else None
        if carrier is None:
            answer = await self.client.post(token_in.value, body)
        else:
            answer = await carrier.post(self.client, token_in.value, body)
        sizes = (self._needs.vocab_size, self._needs.num_experts, params.routes_from)
        return as_reply(answer, token_in, self.client.url, len(prompt_ids), *sizes)

    def _completion(
        self, reply: Reply, prompt_tokens: int, version: int, sent_s: float, *, waited_s: float
    ) -> Completion:
        self._sampled_total += len(reply.token_ids)
        self._prefilled_total += prompt_tokens - (reply.cached_tokens or 0)
        return reply.completion(version, self._clock() - sent_s, waited_s=waited_s)

    async def _broke_off(self) -> None:
        """Does nothing: a connection was lost, and whoever started the server knows best what that means."""

    def _rest(self, on: bool) -> None:
        if self._monitor is not None:
            self._monitor.rest(on)

    def _came_back(self) -> None:
        if self._readmission is None or self._readmission.done():
            self._readmission = asyncio.get_running_loop().create_task(self._readmit())

    def _was_restarted(self) -> None:
        self.lose("its server was restarted")
        self._came_back()

    async def _readmit(self) -> None:
        """Lets a server that came back serve again if it has the weights that it should have."""
        if self.held:
            return
        try:
            if self.weight_version and await told_version(self.client, self.features) != self.weight_version:
                self.lose(f"its server came back without the weights of step {self.weight_version}")
                return
        except EngineError as error:
            self.lose(str(error))
            return
        if self.in_flight.failure is not None:
            _log.warning("engine %s is back", self.name)
            self.in_flight.readmit()
            self._tell(True)
