"""An endpoint of somebody else's as an engine: the gateway asks it for replies in text, for it has no tokens.

Invariants:
- The endpoint is asked for a few tokens before a run begins: key, model, dialect and fields are right by then.
- A call that the endpoint cannot answer now is sent again after a pause that grows and has jitter; all calls pause
  together where the endpoint says that there are too many, and for as long as it says.
- Once the endpoint is closed (the budget is spent, or the key is refused) no call is sent any more. Calls are held, and
  `watch` ends the work when nobody does anything else: what was paid for is graded.
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
from swe_rl.engine.endpoint.formats import FORMATS, Format
from swe_rl.engine.endpoint.question import EndpointReply, Question, Usage
from swe_rl.engine.endpoint.refusals import (
    EndpointClosedError,
    PassingError,
    error_inside,
    error_of,
    refused_field,
)
from swe_rl.engine.endpoint.spending import Spending
from swe_rl.engine.protocol import Completion, Engine, EngineError, EngineStats, SamplingParams
from swe_rl.engine.server.client import HttpClient, ServerAnswer, ServerFailingError, SilentError
from swe_rl.errors import UserError

if TYPE_CHECKING:
    import torch

_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
# A call that the endpoint fails is sent so often. One that it has no room for is sent until the attempt's patience
# ends (rollout.max_wait_s).
_TRIES = 6
_LOOK_S = 0.2
_GREETING = Question([{"role": "user", "content": "Answer with the word yes."}], SamplingParams(16))
_GREETER = "greeting"
# A token has about so many characters, if the endpoint does not count.
_CHARS_PER_TOKEN = 4
# A shorter text may be in a reply by chance.
_SHORTEST_KEY = 8
# Begins a wait of the caller's and returns the function that ends it.
BeginWait = Callable[[], Callable[[], None]]


class EndpointError(UserError):
    """The endpoint does not answer as configured."""


class EndpointEngine(Engine):
    """Asks one endpoint. `say` hears what a user should know; `params` are the run's own, and are tried at the
    start."""

    def __init__(
        self,
        config: EngineConfig,
        spending: Spending,
        say: Callable[[str], None],
        *,
        params: SamplingParams | None = None,
        rng: random.Random | None = None,
        sleep: Callable[[float], Any] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("endpoint")
        self.spending = spending
        self.closed: EndpointClosedError | None = None
        self._config = config
        self._say = say
        self._greeting_params = params or _GREETING.params
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._clock = clock
        self._format: Format = FORMATS[EndpointDialect.chat]
        self._client: HttpClient | None = None
        self._left_out: dict[str, str | None] = {}
        self._resumes_s = 0.0
        self._asking = 0
        self._held: Counter[str] = Counter()
        self._told_of_usage = False

    async def start(self) -> None:
        """Finds the dialect, and tries key and model. Raises EndpointError, EngineError."""
        if self._is_closed():
            return
        asked = self._config.dialect
        dialects = [asked] if asked is not EndpointDialect.auto else list(FORMATS)
        refusals: list[str] = []
        for dialect in dialects:
            await self._speak(FORMATS[dialect])
            try:
                await self._greet()
            except EndpointClosedError as error:
                raise EndpointError(f"engine.url={self._config.url}: {error}") from error
            except EngineError as error:
                refusals.append(f"{dialect}: {error}")
                continue
            if asked is EndpointDialect.auto:
                self._say(f"{self._config.url} answers {dialect} (engine.dialect={dialect})")
            return
        raise EndpointError(
            f"engine.url={self._config.url} gives no reply of engine.model={self._config.model}: "
            f"{'; '.join(refusals)}. Correct engine.url (https://HOST/v1), engine.model or engine.dialect"
        )

    async def ask(self, question: Question, session_id: str, begin_wait: BeginWait) -> tuple[EndpointReply, Usage]:
        """Returns the reply and what it used. Pauses are the caller's waits. Raises ContextOverflowError,
        EngineError, DiskError."""
        number = 0
        while True:
            await self._admitted(session_id, begin_wait)
            try:
                return await self._ask_once(question, session_id)
            except EndpointClosedError as error:
                self.closed = error
            except PassingError as error:
                number += 1
                if number >= _TRIES and not error.limited:
                    raise
                await self._pause(error, number, begin_wait)

    async def watch(self, under_way: Callable[[], int]) -> NoReturn:
        """Raises EndpointClosedError once the endpoint is closed and all attempts under way wait for it in vain."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self.closed is not None and not self._asking and len(self._held) >= under_way() > 0:
                raise self.closed

    async def close(self) -> None:
        client = self._client
        self._client = None
        if client is not None:
            await client.close()
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
        if self._client is not None:
            await self._client.close()
        self._format = spoken
        self._left_out = {}
        self._client = HttpClient(self._config.url, headers=spoken.headers(self._config.key))
        await self._client.open()

    async def _greet(self) -> None:
        """Asks for a few tokens with the run's sampling. Raises EngineError."""
        params = self._greeting_params
        question = Question(
            _GREETING.messages,
            SamplingParams(
                min(params.max_tokens, _GREETING.params.max_tokens),
                params.temperature,
                params.top_p,
                params.top_k,
                seed=params.seed,
                min_p=params.min_p,
            ),
        )
        for number in range(1, _TRIES):
            try:
                await self._ask_once(question, _GREETER)
                return
            except PassingError as error:
                if number == _TRIES - 1 or not error.limited:
                    raise
                await self._sleep(self._pause_s(error, number))

    async def _ask_once(self, question: Question, session_id: str) -> tuple[EndpointReply, Usage]:
        self._asking += 1
        began_s = self._clock()
        try:
            answer = await self._post(self._body(question))
            reply = self._read(answer)
            usage = reply.usage or self._estimated(question, reply)
            self.spending.note(session_id, usage, self._clock() - began_s)
            return reply, usage
        finally:
            self._asking -= 1

    def _body(self, question: Question) -> dict[str, Any]:
        body = self._format.body(question, self._config.model)
        body[self._format.limit_field] = question.params.max_tokens
        for name, instead in self._left_out.items():
            value = body.pop(name, None)
            if instead is not None and value is not None:
                body[instead] = value
        return body

    async def _post(self, body: dict[str, Any]) -> ServerAnswer:
        """Returns an answer of status 200. A field that the endpoint's model does not take is left out from then on.
        Raises EngineError."""
        assert self._client is not None
        path = _path_below(self._config.url, self._format.path)
        while True:
            try:
                answer = await self._client.post(path, body, timeout_s=self._config.call_timeout_s)
            except (ServerFailingError, SilentError) as error:
                raise PassingError(str(error)) from error
            answer = self._without_key(answer)
            if answer.status == 200:
                return answer
            name = refused_field(answer, body)
            if name is None:
                raise error_of(answer)
            self._leave_out(name, answer.reason(), body)

    def _without_key(self, answer: ServerAnswer) -> ServerAnswer:
        """Some endpoints repeat a wrong key, and what they say is shown and written."""
        key = self._config.key
        if key and len(key) >= _SHORTEST_KEY and key.encode() in answer.body:
            return replace(answer, body=answer.body.replace(key.encode(), b"***"))
        return answer

    def _leave_out(self, name: str, reason: str, body: dict[str, Any]) -> None:
        instead = None
        if name == "max_tokens" and self._format is FORMATS[EndpointDialect.chat]:
            # Newer models of OpenAI's know the limit by this name alone.
            instead = "max_completion_tokens"
        value = body.pop(name)
        if instead is not None:
            body[instead] = value
        if name not in self._left_out:
            self._left_out[name] = instead
            if instead is None:
                self._say(f"warning: {self._config.model} refuses {name}={value} ({reason}): it is left out")

    def _read(self, answer: ServerAnswer) -> EndpointReply:
        payload = answer.json()
        error = error_inside(answer, payload)
        if error is not None:
            raise error
        try:
            return self._format.read(payload)
        except (LookupError, TypeError, AttributeError) as problem:
            shown = f"{type(problem).__name__}: {problem}"
            raise PassingError(f"its answer has another form than {self._format.path} ({shown})") from problem

    def _estimated(self, question: Question, reply: EndpointReply) -> Usage:
        if not self._told_of_usage:
            self._told_of_usage = True
            self._say(f"warning: {self._config.url} does not count tokens; they are estimated by the length of texts")
        parsed = reply.parsed
        said = len(parsed.content) + len(parsed.reasoning_content or "")
        said += sum(len(call.name) + len(call.arguments) for call in parsed.tool_calls)
        read = len(str([*question.messages, *question.tools]))
        return Usage(read // _CHARS_PER_TOKEN, said // _CHARS_PER_TOKEN + 1, estimated=True)

    async def _admitted(self, session_id: str, begin_wait: BeginWait) -> None:
        """Returns when a call may be sent: after a pause of all calls, and never again once the endpoint is closed."""
        if self._is_closed():
            self._held[session_id] += 1
            end_wait = begin_wait()
            try:
                await asyncio.Event().wait()
            finally:
                end_wait()
                self._held[session_id] -= 1
                self._held += Counter()
        left_s = self._resumes_s - self._clock()
        if left_s > 0:
            end_wait = begin_wait()
            try:
                await self._sleep(left_s * self._rng.uniform(1.0, 1.25))
            finally:
                end_wait()

    def _is_closed(self) -> bool:
        spent = self.spending.exhausted()
        if self.closed is None and spent:
            self.closed = EndpointClosedError(f"{spent}. With a larger one, the run goes on where it is")
        return self.closed is not None

    async def _pause(self, error: PassingError, number: int, begin_wait: BeginWait) -> None:
        pause_s = self._pause_s(error, number)
        if error.limited:
            self._resumes_s = max(self._resumes_s, self._clock() + pause_s)
            return
        end_wait = begin_wait()
        try:
            await self._sleep(pause_s)
        finally:
            end_wait()

    def _pause_s(self, error: PassingError, number: int) -> float:
        grown_s = min(_LONGEST_PAUSE_S, _PAUSE_S * 2.0 ** (number - 1)) * self._rng.uniform(0.5, 1.0)
        return max(grown_s, error.retry_after_s or 0.0)


def spending_of(engines: Sequence[Engine]) -> dict[str, Any] | None:
    """Returns what an endpoint was asked for so far, or None without an endpoint."""
    for engine in engines:
        if isinstance(engine, EndpointEngine):
            return engine.spending.to_record()
    return None


def _path_below(url: str, path: str) -> str:
    """Returns the path that belongs behind the client's address, which has no closing `/v1`. An address with another
    path is meant as it is written."""
    shown = url.strip().rstrip("/")
    has_path = "/" in shown.partition("://")[2]
    if has_path and not shown.endswith("/v1"):
        return path
    return f"/v1{path}"
