"""An endpoint of somebody else's as an engine: the gateway asks it for replies in text, for it has no tokens.

Invariants:
- The endpoint is asked for a few tokens before a run begins: key, model, dialect and fields are right by then.
- A call that the endpoint cannot answer now is sent again after a pause that grows and has jitter; all calls pause
  together where the endpoint says that there are too many, and for as long as it says.
- Once the endpoint is closed (the budget is spent, or the key is refused) no call is sent any more, a paused one
  neither. Calls are held, and `watch` ends the work when nobody does anything else: what was paid for is graded.
- Every call that was sent is counted, also without a reply.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from swe_rl.config.choices import EndpointDialect
from swe_rl.config.schema import EngineConfig
from swe_rl.engine.endpoint.caller import Call, Caller, CorrectedError
from swe_rl.engine.endpoint.formats import FORMATS, Format
from swe_rl.engine.endpoint.question import EndpointReply, Question, Usage
from swe_rl.engine.endpoint.refusals import EndpointClosedError, PassingError
from swe_rl.engine.endpoint.spending import Spending
from swe_rl.engine.engine import Completion, Engine, EngineError, EngineStats, SamplingParams
from swe_rl.engine.server.client import ServerAnswer
from swe_rl.errors import UserError

if TYPE_CHECKING:
    import torch

_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_MOST_DOUBLINGS = 10
# A call that the endpoint fails is sent so often. One that it has no room for is sent until the attempt's patience
# ends (rollout.max_wait_s).
_TRIES = 6
# Before a run begins, somebody looks at the terminal. An endpoint may put them off for so long.
_LONGEST_GREETING_S = 300.0
# A user should know of pauses that are longer than this.
_TOLD_PAUSE_S = 30.0
_LOOK_S = 0.2
_GREETING = Question([{"role": "user", "content": "Answer with the word yes."}], SamplingParams(16))
_GREETER = "greeting"
# A token has about so many characters, if the endpoint does not count.
_CHARS_PER_TOKEN = 4


class EndpointError(UserError):
    """The endpoint does not answer as configured."""


class EndpointEngine(Engine):
    """Asks one endpoint. `say` hears what a user should know; `params` are the run's own, and are tried at the
    start. An endpoint that asks for a pause of `patience_s` or more is closed."""

    def __init__(
        self,
        config: EngineConfig,
        spending: Spending,
        say: Callable[[str], None],
        *,
        params: SamplingParams | None = None,
        patience_s: float = 7200.0,
        rng: random.Random | None = None,
        sleep: Callable[[float], Any] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("endpoint")
        self.spending = spending
        self.closed: EndpointClosedError | None = None
        self._closing = asyncio.Event()
        self._config = config
        self._say = say
        self._greeting_params = params or _GREETING.params
        self._patience_s = patience_s
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._clock = clock
        self._caller: Caller | None = None
        self._resumes_s = 0.0
        self._asking = 0
        self._held: Counter[str] = Counter()
        self._told_of_usage = False
        self._told_of_filter = False

    async def start(self) -> None:
        """Finds the dialect, and tries key and model. Raises EndpointError, EngineError."""
        if self._is_closed():
            return
        asked = self._config.dialect
        dialects = [asked] if asked is not EndpointDialect.auto else list(FORMATS)
        refusals: dict[str, list[str]] = {}  # dialects by what was said to them
        for dialect in dialects:
            await self._speak(FORMATS[dialect])
            try:
                await self._greet()
            except EndpointClosedError as error:
                # Some endpoints look at the key before the path, and Messages has the key in a header of its own.
                if not error.of_key:
                    raise EndpointError(f"engine.url={self._config.url}: {error}") from error
                refusals.setdefault(str(error).rstrip("."), []).append(dialect)
                continue
            except EngineError as error:
                refusals.setdefault(str(error).rstrip("."), []).append(dialect)
                continue
            if asked is EndpointDialect.auto:
                self._say(f"{self._config.url} answers {dialect} (engine.dialect={dialect})")
            return
        reasons = "; ".join(f"{', '.join(spoken)}: {reason}" for reason, spoken in refusals.items())
        raise EndpointError(
            f"engine.url={self._config.url} gives no reply of engine.model={self._config.model}: "
            f"{reasons}. Correct engine.url (https://HOST/v1), engine.model, engine.key or engine.dialect"
        )

    async def ask(self, question: Question, session_id: str) -> tuple[EndpointReply, Usage]:
        """Returns the reply and what it used. Raises ContextOverflowError, EngineError, DiskError."""
        call = Call(question, session_id, question.params.max_tokens)
        number = 0
        while True:
            await self._admit(session_id)
            try:
                return await self._ask_once(call)
            except CorrectedError:
                continue
            except EndpointClosedError as error:
                self._close_because(error)
            except PassingError as error:
                number += 1
                if number >= _TRIES and not error.limited:
                    raise
                await self._pause(error, number)

    async def watch(self, under_way: Callable[[], int]) -> NoReturn:
        """Raises EndpointClosedError once the endpoint is closed and all attempts under way wait for it in vain."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self.closed is not None and not self._asking and len(self._held) >= under_way() > 0:
                raise self.closed

    async def close(self) -> None:
        caller = self._caller
        self._caller = None
        if caller is not None:
            await caller.close()
        self.spending.close()

    def stats(self) -> EngineStats:
        return EngineStats(
            running=self._asking,
            waiting=len(self._held),
            kv_used_tokens=0,
            kv_capacity_tokens=0,
            weight_version=0,
            sampled_tokens_total=self.spending.sampled_tokens,
            prefill_tokens_total=self.spending.prompt_tokens,
        )

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, request_id: str, session_id: str | None = None
    ) -> Completion:
        raise EngineError("engine=endpoint answers in text and takes no token ids")

    async def abort(self, request_id: str) -> None:
        raise EngineError("engine=endpoint cannot end a request by its name")

    async def pause(self) -> None:
        raise EngineError("engine=endpoint cannot be paused")

    async def resume(self) -> None:
        raise EngineError("engine=endpoint cannot be paused")

    async def update_weights(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        raise EngineError("engine=endpoint takes no weights")

    async def _speak(self, spoken: Format) -> None:
        """Speaks a dialect from now on."""
        if self._caller is not None:
            await self._caller.close()
        self._caller = Caller(self._config, spoken, self._say)
        await self._caller.open()

    async def _greet(self) -> None:
        """Asks for a few tokens with the run's sampling. Raises EngineError."""
        params = self._greeting_params
        question = replace(_GREETING, params=replace(params, max_tokens=min(params.max_tokens, 16)))
        call = Call(question, _GREETER, question.params.max_tokens)
        number = 0
        waited_s = 0.0
        while True:
            try:
                await self._ask_once(call)
                return
            except CorrectedError:
                continue
            except PassingError as error:
                number += 1
                pause_s = self._pause_s(error, number)
                waited_s += pause_s
                if number == _TRIES - 1 or not error.limited:
                    raise
                if waited_s > _LONGEST_GREETING_S:
                    raise EndpointError(
                        f"engine.url={self._config.url} asks to be left alone for {pause_s:.0f} s ({error}). Start the "
                        "job again then, or look at the account's limits"
                    ) from error
                self._say(f"{self._config.url} asks to be left alone: the next try is in {pause_s:.0f} s ({error})")
                await self._sleep(pause_s)

    async def _ask_once(self, call: Call) -> tuple[EndpointReply, Usage]:
        """Sends a call, and counts what it costs, whatever becomes of it. Raises CorrectedError, EngineError."""
        began_s = self._clock()
        self._asking += 1
        try:
            answer = await self._send(call, began_s)
            reply = self._read(answer, call, began_s)
            usage = reply.usage or self._estimated(call.question, reply)
            self.spending.note(call.session_id, usage, self._clock() - began_s)
            self._tell_of_filter(reply)
            return reply, usage
        finally:
            self._asking -= 1
            # Calls that pause need to know at once that the budget is spent.
            self._is_closed()

    async def _send(self, call: Call, began_s: float) -> ServerAnswer:
        assert self._caller is not None
        try:
            return await self._caller.send(call)
        except asyncio.CancelledError:
            self._note_lost(call, began_s)
            raise
        except PassingError as error:
            if error.unsure:
                self._note_lost(call, began_s)
            raise

    def _read(self, answer: ServerAnswer, call: Call, began_s: float) -> EndpointReply:
        assert self._caller is not None
        try:
            return self._caller.read(answer)
        except EngineError as error:
            usage = self._caller.usage_of(answer)
            if usage is not None:
                self.spending.note(call.session_id, usage, self._clock() - began_s)
            elif isinstance(error, PassingError) and error.unsure:
                self._note_lost(call, began_s)
            raise

    def _note_lost(self, call: Call, began_s: float) -> None:
        """Counts a call that the endpoint may have answered."""
        assert self._caller is not None
        prompt_tokens = _estimated_prompt(call.question)
        self.spending.note_lost(call.session_id, prompt_tokens, self._caller.sent_tokens(call), self._clock() - began_s)

    def _estimated(self, question: Question, reply: EndpointReply) -> Usage:
        if not self._told_of_usage:
            self._told_of_usage = True
            self._say(f"warning: {self._config.url} does not count tokens; they are estimated by the length of texts")
        parsed = reply.parsed
        said = len(parsed.content) + len(parsed.reasoning_content or "")
        said += sum(len(call.name) + len(call.arguments) for call in parsed.tool_calls)
        return Usage(_estimated_prompt(question), said // _CHARS_PER_TOKEN + 1, estimated=True)

    def _tell_of_filter(self, reply: EndpointReply) -> None:
        if reply.was_filtered and not self._told_of_filter:
            self._told_of_filter = True
            url = self._config.url
            self._say(f"warning: a content filter of {url} ended a reply; such replies count as the model's")

    async def _admit(self, session_id: str) -> None:
        """Returns when a call may be sent: after a pause of all calls, and never again once the endpoint is closed."""
        while not self._is_closed():
            left_s = self._resumes_s - self._clock()
            if left_s <= 0:
                return
            await self._rest(left_s * self._rng.uniform(1.0, 1.25))
        self._held[session_id] += 1
        try:
            await asyncio.Event().wait()
        finally:
            self._held[session_id] -= 1
            self._held += Counter()

    def _is_closed(self) -> bool:
        spent = self.spending.exhausted()
        if self.closed is None and spent:
            self._close_because(EndpointClosedError(f"{spent}. With a larger one, the run goes on where it is"))
        return self.closed is not None

    def _close_because(self, error: EndpointClosedError) -> None:
        if self.closed is None:
            self.closed = error
        self._closing.set()

    async def _pause(self, error: PassingError, number: int) -> None:
        pause_s = self._pause_s(error, number)
        if pause_s >= self._patience_s:
            self._close_because(
                EndpointClosedError(
                    f"it asks to be left alone for {pause_s:.0f} s ({error}), and the calls of an attempt wait for at "
                    f"most {self._patience_s:.0f} s (rollout.max_wait_s). Go on then"
                )
            )
        elif error.limited:
            self._pause_all(pause_s, error)
        else:
            await self._rest(pause_s)

    def _pause_all(self, pause_s: float, error: PassingError) -> None:
        before_s = self._resumes_s
        now_s = self._clock()
        self._resumes_s = max(before_s, now_s + pause_s)
        if pause_s > _TOLD_PAUSE_S and before_s <= now_s:
            self._say(f"{self._config.url} asks to be left alone: all calls pause for {pause_s:.0f} s ({error})")

    def _pause_s(self, error: PassingError, number: int) -> float:
        # A power of a large number is more than a float holds, and the pauses do not grow any more by then.
        doublings = min(number - 1, _MOST_DOUBLINGS)
        grown_s = min(_LONGEST_PAUSE_S, _PAUSE_S * 2.0**doublings) * self._rng.uniform(0.5, 1.0)
        return max(grown_s, error.retry_after_s or 0.0)

    async def _rest(self, seconds: float) -> None:
        """Sleeps, or for a shorter time if the endpoint is closed meanwhile."""
        sleeping = asyncio.ensure_future(self._sleep(seconds))
        closing = asyncio.ensure_future(self._closing.wait())
        both = {sleeping, closing}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.wait(both)


def spending_of(engines: Sequence[Engine]) -> dict[str, Any] | None:
    """Returns what an endpoint was asked for so far, or None without an endpoint."""
    for engine in engines:
        if isinstance(engine, EndpointEngine):
            return engine.spending.to_record()
    return None


def _estimated_prompt(question: Question) -> int:
    return len(str([*question.messages, *question.tools])) // _CHARS_PER_TOKEN
