"""One running vLLM server as an engine: whoever started it.

Invariants:
- A completion's weight version is the one its first token was sampled with: told by the server (spans), or worked out
  from when the request was scheduled.
- A lost server fails every request that waits for it, at once; requests after that fail too until it is back. One
  that is back with other weights than it should have stays lost.
- While paused here, no request is sent; those already there freeze in the server.
- `close` ends what is in flight and leaves the server running.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from swe_rl.engine.http_client import Answer, HttpClient, ServerFailingError
from swe_rl.engine.http_control import Control
from swe_rl.engine.http_features import Features, Needs, probe
from swe_rl.engine.http_inflight import InFlight
from swe_rl.engine.http_monitor import Monitor, Watcher
from swe_rl.engine.http_versions import WeightHistory
from swe_rl.engine.http_weights import WeightFolders, load_from_folder, set_version, told_version
from swe_rl.engine.http_wire import Reply, parse_reply, request_body, server_request_id, weight_version
from swe_rl.engine.protocol import Completion, ContextOverflowError, EngineError, EngineStats, SamplingParams

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)
_OVERFLOW_WORDS = ("maximum context length", "maximum model length", "max_model_len")


class HttpEngine:
    """`weights` None: the server's weights cannot be changed from here. `name` is the engine's for the router.

    `on_change(up)` is called when the server is lost (False) and when it serves again (True).
    """

    def __init__(
        self,
        client: HttpClient,
        needs: Needs,
        *,
        name: str,
        max_num_seqs: int,
        weights: WeightFolders | None = None,
        stats_period_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.on_change: Callable[[bool], None] | None = None
        self._client = client
        self._needs = needs
        self._max_num_seqs = max_num_seqs
        self._weights = weights
        self._stats_period_s = stats_period_s
        self._clock = clock
        self._features: Features | None = None
        self._monitor: Monitor | None = None
        self._in_flight = InFlight()
        self._readmission: asyncio.Task[None] | None = None
        self._control = Control(client, clock)
        self._server_ids: dict[str, str] = {}
        self._numbers = count()
        self._nonce = secrets.token_hex(4)
        self._versions = WeightHistory()
        self._sampled_total = self._prefilled_total = 0

    @property
    def features(self) -> Features:
        """Raises EngineError before `start`."""
        if self._features is None:
            raise EngineError(f"Engine `{self.name}` was not started; await start() first.")
        return self._features

    @property
    def weight_version(self) -> int:
        return self._versions.latest

    async def start(self) -> None:
        """Raises ServerRefusedError, EngineError; the session is then closed again."""
        await self._client.open()
        try:
            self._features = await probe(self._client, self._needs)
        except BaseException:
            await self._client.close()
            raise
        _log.info("engine %s at %s: %s", self.name, self._client.url, self._features)
        watcher = Watcher(lost=self.lose, back=self._came_back, restarted=self._was_restarted)
        path = "/metrics" if self._features.metrics else "/v1/models"
        self._monitor = Monitor(self._client, watcher, path=path, period_s=self._stats_period_s, clock=self._clock)
        await self._monitor.look()
        self._monitor.start()

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, request_id: str, session_id: str | None = None
    ) -> Completion:
        """Raises ContextOverflowError, or EngineError. Cancelling the awaiting task aborts the request."""
        features = self.features
        self._check_room(prompt_ids, features, request_id)
        await self._control.passed()
        self._in_flight.check()
        sent_s, version = self._clock(), self.weight_version
        own_id = f"{self._nonce}-{next(self._numbers)}"
        self._server_ids[request_id] = server_request_id(features.token_in, own_id)
        body = request_body(
            features.token_in,
            prompt_ids,
            _within(params, self._limit(features) - len(prompt_ids)),
            model=features.model,
            request_id=own_id,
            cache_salt=f"weights-{version}" if version else None,
        )
        try:
            answer = await self._in_flight.run(self._client.post(features.token_in.value, body), len(prompt_ids))
            reply = self._understand(answer, prompt_ids)
        except ContextOverflowError:
            raise
        except EngineError as error:
            raise type(error)(f"Engine `{self.name}`: {error}") from error
        finally:
            self._server_ids.pop(request_id, None)
        return self._completion(reply, len(prompt_ids), sent_s)

    async def abort(self, request_id: str) -> None:
        """The request ends with finish_reason `abort` and what it has sampled so far; unknown ids are ignored.

        Raises EngineError when the server does not offer it.
        """
        server_id = self._server_ids.get(request_id)
        if server_id is not None:
            await self._control.abort(server_id)

    def release_session(self, session_id: str) -> None:
        """Nothing is kept for a session: the server's prefix cache forgets what is not used."""

    async def pause(self) -> None:
        """Returns once the server has frozen what runs there. Raises EngineError."""
        self._in_flight.check()
        await self._control.pause(self.features)

    async def resume(self) -> None:
        await self._control.resume(self.features)

    async def update_weights(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        """Through a folder that the server reads. Raises EngineError; a server that fails half-way is lost."""
        if self._weights is None or not self.features.reload:
            raise EngineError(
                f"Engine `{self.name}` at {self._client.url} takes no weights: the server needs VLLM_SERVER_DEV_MODE=1 "
                "and a folder that it shares with this process (trainer.lora_sync_dir or paths.scratch)"
            )
        folder = await self._weights.write(weights, version)
        was_paused = self._control.paused
        if not was_paused:
            await self.pause()
        try:
            await load_from_folder(self._client, self.features, folder, version)
        except BaseException as error:
            self.lose(f"an update of its weights failed half-way: {error or type(error).__name__}")
            self._control.open_gate()  # what waits there fails with the reason
            raise
        self.stamp(version)
        if not was_paused:
            await self.resume()

    async def adopt(self, version: int) -> None:
        """The server was started with the weights of `version`."""
        await set_version(self._client, self.features, version)
        self.stamp(version)

    def stamp(self, version: int) -> None:
        """Requests scheduled from now on are sampled with `version`; for updates that did not go through here.

        In a pause, from its beginning on: the server schedules nothing until its end, and what a reply says about its
        time of scheduling is too early by the request's way to the server.
        """
        since_s = self._control.paused_since_s
        self._versions.add(self._clock() if since_s is None else since_s, version)

    def stats(self) -> EngineStats:
        """The server's own numbers, `stats_period_s` old at most; without /metrics what is known here."""
        latest = self._monitor.latest if self._monitor else None
        if latest is None:
            held = self._in_flight.tokens
            capacity = self._max_num_seqs * (self._features.max_model_len if self._features else 0)
            running, waiting = len(self._in_flight), 0
        else:
            held, capacity = round(latest.kv_usage * latest.kv_capacity_tokens), latest.kv_capacity_tokens
            running, waiting = latest.running, latest.waiting
        return EngineStats(
            running=running,
            waiting=waiting,
            kv_used_tokens=held,
            kv_capacity_tokens=capacity,
            weight_version=self.weight_version,
            sampled_tokens_total=self._sampled_total,
            prefill_tokens_total=self._prefilled_total,
            preemptions_total=latest.preemptions_total if latest else 0,
        )

    async def refresh(self) -> None:
        """Looks at the server's load now."""
        if self._monitor is not None:
            await self._monitor.look()

    def lose(self, reason: str) -> None:
        """Fails what is in flight and what comes, until the server is back."""
        was_up = self._in_flight.failure is None
        self._in_flight.fail(EngineError(f"Engine `{self.name}` at {self._client.url} is lost: {reason}"))
        if was_up:
            self._tell(False)

    async def close(self) -> None:
        """May be called twice."""
        self.on_change = None
        self._in_flight.fail(self._in_flight.failure or EngineError(f"Engine `{self.name}` is closed."))
        self._control.open_gate()
        if self._readmission is not None:
            self._readmission.cancel()
        if self._monitor is not None:
            await self._monitor.close()
        await self._client.close()

    def _limit(self, features: Features) -> int:
        """Tokens of prompt and reply together."""
        return min(self._needs.max_model_len, features.max_model_len)

    def _check_room(self, prompt_ids: Sequence[int], features: Features, request_id: str) -> None:
        limit = self._limit(features)
        if not prompt_ids:
            raise EngineError(f"Engine `{self.name}` refuses request `{request_id}`: its prompt is empty.")
        if len(prompt_ids) + 1 > limit:
            raise ContextOverflowError(
                f"Request `{request_id}` has a prompt of {len(prompt_ids)} tokens, which leaves no room to sample "
                f"within engine.max_model_len={limit}."
            )

    def _understand(self, answer: Answer, prompt_ids: Sequence[int]) -> Reply:
        if not answer.ok:
            reason = answer.reason()
            if answer.status == 400 and any(words in reason for words in _OVERFLOW_WORDS):
                raise ContextOverflowError(f"{len(prompt_ids)} prompt tokens do not fit: {reason}")
            kind = ServerFailingError if answer.status >= 500 else EngineError
            raise kind(f"{self._client.url} answered {answer.status}: {reason}")
        return parse_reply(self.features.token_in, answer.json())

    def _completion(self, reply: Reply, prompt_tokens: int, sent_s: float) -> Completion:
        elapsed_s = self._clock() - sent_s
        cached = reply.cached_tokens or 0
        self._sampled_total += len(reply.token_ids)
        self._prefilled_total += prompt_tokens - cached
        queue_s, prefill_s = reply.queue_s or 0.0, reply.prefill_s or 0.0
        return Completion(
            token_ids=reply.token_ids,
            logprobs=reply.logprobs,
            finish_reason=reply.finish_reason,
            weight_version=self._version_of(reply, sent_s + queue_s),
            cached_tokens=cached,
            queue_s=queue_s,
            prefill_s=prefill_s,
            decode_s=max(0.0, elapsed_s - queue_s - prefill_s) if reply.decode_s is None else reply.decode_s,
        )

    def _version_of(self, reply: Reply, scheduled_s: float) -> int:
        told = weight_version(reply.version_spans[0][0]) if reply.version_spans else None
        if told is not None:
            return told
        return self._versions.at(scheduled_s)

    def _tell(self, up: bool) -> None:
        if self.on_change is not None:
            self.on_change(up)

    def _came_back(self) -> None:
        if self._readmission is None or self._readmission.done():
            self._readmission = asyncio.get_running_loop().create_task(self._readmit())

    def _was_restarted(self) -> None:
        self.lose("its server was restarted")
        self._came_back()

    async def _readmit(self) -> None:
        """A server that came back serves again if it has the weights that it should have."""
        try:
            if self.weight_version and await told_version(self._client, self.features) != self.weight_version:
                self.lose(f"its server came back without the weights of step {self.weight_version}")
                return
        except EngineError as error:
            self.lose(str(error))
            return
        if self._in_flight.failure is not None:
            _log.warning("engine %s is back", self.name)
            self._in_flight.readmit()
            self._tell(True)


def _within(params: SamplingParams, room: int) -> SamplingParams:
    if params.max_tokens <= room:
        return params
    return SamplingParams(room, params.temperature, params.top_p, params.top_k, params.stop_token_ids, params.seed)
