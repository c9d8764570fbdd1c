"""A far session is what the driver has of a session in one of the gateway's processes: its calls, and the ids that it
goes on from.

Invariants:
- Turns are kept in the order in which they came; a session ends after the last of them.
- A prompt comes as what is new after a recorded turn. The driver forgets the ids of turns that were not used lately,
  and asks for such a prompt as a whole.
- The process that has the prompt asks an engine's server. The driver says when, and what the answer means.
- If a turn could not be kept, every further call of its session is refused.
- Once the process is lost nothing of it goes on: calls are cancelled, engines abort them.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from swe_rl.engine.engine import EngineError, SamplingParams
from swe_rl.engine.server.client import (
    ConnectionLostError,
    HttpClient,
    ServerAnswer,
    ServerFailingError,
    SilentError,
    UnreachableError,
)
from swe_rl.engine.token_ids import TokenIds
from swe_rl.gateway.chains.sampled_reply import SampledReply
from swe_rl.gateway.errors import (
    ApiError,
    engine_failure,
    internal_failure,
    refusal_of,
)
from swe_rl.gateway.live import SessionSummary
from swe_rl.gateway.processes.link import Head, Link, packed_completion
from swe_rl.gateway.sampling import Sampling, Wanted
from swe_rl.gateway.trace import Break, Recorded, SegmentRole, TraceStoreError
from swe_rl.gateway.waits import Waits

_log = logging.getLogger(__name__)
_FAILURES = {kind.__name__: kind for kind in (ServerFailingError, ConnectionLostError, UnreachableError, SilentError)}
# The ids of so many turns are held. One is enough for one conversation, but sub-agents take turns.
_KEPT = 4


@dataclass(frozen=True, slots=True)
class _Answered:
    prompt_ids: TokenIds
    sampled: SampledReply


class _Carrier:
    """Asks an engine's server in the driver's place: the process of the call, which has the prompt."""

    def __init__(self, link: Link, call: int, answers: "dict[int, asyncio.Future[ServerAnswer]]") -> None:
        self._link = link
        self._call = call
        self._answers = answers

    async def post(self, client: HttpClient, path: str, body: Mapping[str, Any]) -> ServerAnswer:
        call = self._call
        (ids,) = (name for name, value in body.items() if isinstance(value, TokenIds))
        rest = {name: value for name, value in body.items() if name != ids}
        self._answers[call] = asyncio.get_running_loop().create_future()
        head = {"kind": "post", "call": call, "client": client.settings(), "path": path, "ids": ids, "rest": rest}
        self._link.send(head)
        try:
            return await self._answers[call]
        except asyncio.CancelledError:
            self._link.send({"kind": "unpost", "call": call})
            raise
        finally:
            del self._answers[call]


class FarSession:
    """Keeps the driver's side of one session. `secret` is empty for a session that a client began. `ended` is done once
    its process has closed the session, or was lost."""

    def __init__(
        self,
        session_id: str,
        secret: str,
        group_id: str | None,
        link: Link,
        sampling: Sampling,
        clock: Callable[[], float],
    ) -> None:
        self.session_id = session_id
        self.secret = secret
        self.waits = Waits(clock)
        self.ended: asyncio.Future[SessionSummary] = asyncio.get_running_loop().create_future()
        self._group_id = group_id
        self._link = link
        self._sampling = sampling
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._answered: dict[int, _Answered] = {}
        # Has the awaited answer of a server by call.
        self._answers: dict[int, asyncio.Future[ServerAnswer]] = {}
        # Has the prompt and sampled ids of turns. The turn that was used least lately comes first.
        self._turns: OrderedDict[int, TokenIds] = OrderedDict()
        self._keeping: set[asyncio.Task[None]] = set()
        self._in_order = asyncio.Lock()
        self._unkept: TraceStoreError | None = None
        # Says why a turn of the session is not with the store.
        self._gap = ""

    @property
    def num_calls(self) -> int:
        return len(self._calls)

    def sample(self, head: Head, body: bytes) -> None:
        self.waits.asked()
        call = head["call"]
        base = head["base"]
        ids = np.frombuffer(body, "<i4")
        if base is not None and base not in self._turns:
            self._link.send({"kind": "whole", "call": call})
            return
        if base is None:
            prompt_ids = TokenIds(ids)
        else:
            prompt_ids = self._turns[base].extended(ids)
        assert len(prompt_ids) == head["tokens"], "both sides mean the same prompt"
        fields = head["params"] | {"stop_token_ids": tuple(head["params"]["stop_token_ids"])}
        carried = prompt_ids.carried(_Carrier(self._link, call, self._answers))
        params = SamplingParams(**fields)
        wanted = Wanted(self.session_id, self._group_id, head["number"], carried, params, self.waits)
        self._calls[call] = self._task(self._sample(call, wanted, head["logprobs"]))

    def posted(self, head: Head, body: bytes) -> None:
        """Takes what an engine's server said to the process of a call."""
        answer = self._answers.get(head["call"])
        if answer is None or answer.done():
            return
        if head["error"] is None:
            answer.set_result(ServerAnswer(head["status"], body, head["retry_after_s"]))
        else:
            answer.set_exception(_FAILURES.get(head["error"], EngineError)(head["message"]))

    def cancel(self, call: int) -> None:
        self._answered.pop(call, None)
        if call in self._calls:
            self._calls[call].cancel()

    def record(self, head: Head) -> None:
        answered = self._answered.pop(head["call"])
        fields = head["turn"]
        kind = None
        if fields["break_kind"]:
            kind = Break(fields["break_kind"])
        turn = Recorded(**fields | {"break_kind": kind, "role": SegmentRole(fields["role"])})
        if turn.base_turn is not None:
            self._turns.pop(turn.base_turn, None)
        self._turns[turn.turn] = answered.prompt_ids.extended(answered.sampled.completion.token_ids)
        if len(self._turns) > _KEPT:
            self._turns.popitem(last=False)
        task = self._task(self._keep(answered, turn, head["call_s"]))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    def closed(self, summary: Head) -> None:
        breaks = {Break(kind): number for kind, number in summary["breaks"].items()}
        self._end(SessionSummary(**summary | {"breaks": breaks}))

    def lose(self, reason: str) -> None:
        times_s = dict.fromkeys(("queue", "prefill", "decode"), 0.0)
        self._end(SessionSummary(0, 0, {}, times_s, lost=reason))

    def summary(self) -> SessionSummary:
        """Returns the summary of a session that has ended and is settled. Its last turn may have been lost after the
        end."""
        ended = self.ended.result()
        if self._gap:
            return replace(ended, lost=self._gap)
        return ended

    async def settle(self) -> None:
        """Ends the session's calls. Its turns are with the store when this returns."""
        for task in list(self._calls.values()):
            task.cancel()
        await asyncio.gather(*self._calls.values(), *self._keeping, return_exceptions=True)

    def _end(self, summary: SessionSummary) -> None:
        for task in list(self._calls.values()):
            task.cancel()
        if not self.ended.done():
            self.ended.set_result(summary)

    async def _sample(self, call: int, wanted: Wanted, logprobs: bool) -> None:
        try:
            if self._unkept is not None:
                raise refusal_of(self._unkept)
            if self._gap:
                raise engine_failure(500, self._gap)
            sampled = await self._sampling.answer(wanted)
            completion, body = packed_completion(sampled.completion, logprobs)
        except ApiError as error:
            self._refuse(call, error)
        except Exception as error:
            # The fault is ours. The call waits in its process for an answer, whatever it is.
            _log.exception("a call of session %s failed", self.session_id)
            self._refuse(call, internal_failure(error))
        else:
            self._answered[call] = _Answered(wanted.prompt_ids, sampled)
            head = {"kind": "sampled", "call": call, "engine": sampled.engine, "held_s": sampled.held_s}
            self._link.send(head | {"completion": completion}, body)
        finally:
            self._calls.pop(call, None)

    def _refuse(self, call: int, error: ApiError) -> None:
        fields = {name: getattr(error, name) for name in ("status", "message", "kind", "code", "param")}
        self._link.send({"kind": "refusal", "call": call, "error": fields})

    async def _keep(self, answered: _Answered, turn: Recorded, call_s: float) -> None:
        async with self._in_order:
            try:
                await self._sampling.keep(self.session_id, answered.prompt_ids, turn, answered.sampled, call_s)
            except TraceStoreError as error:
                # The store keeps the error for whoever closes the session.
                self._unkept = error
            except Exception as error:
                # The fault is ours. Without the turn the session is not what its agent saw.
                _log.exception("a turn of session %s could not be kept", self.session_id)
                self._gap = f"a turn could not be kept: {type(error).__name__}: {error}"
                # A client that began its session is not told of the session's end, but its next call is refused.
                if self.secret:
                    self.lose(self._gap)

    @staticmethod
    def _task(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(work)
