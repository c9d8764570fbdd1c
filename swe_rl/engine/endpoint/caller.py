"""Sends questions to an endpoint in one dialect, and learns which fields of a request it does not take.

Invariants:
- The key is in the request's headers alone. What the endpoint repeats of it is hidden before anybody reads an answer.
- A field that was refused is not sent again. Whoever asks sends the corrected question anew, if calls may be sent yet.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import orjson

from swe_rl.config.schema import EngineConfig
from swe_rl.engine.endpoint.formats import Format
from swe_rl.engine.endpoint.question import EndpointReply, Question, Usage
from swe_rl.engine.endpoint.refusals import (
    PassingError,
    error_inside,
    error_of,
    has_full_prompt,
    refused_field,
)
from swe_rl.engine.endpoint.reply_limit import ReplyLimit
from swe_rl.engine.engine import ContextOverflowError, EngineError
from swe_rl.engine.server.client import (
    HttpClient,
    ServerAnswer,
    ServerFailingError,
    SilentError,
    UnreachableError,
)

# A call whose request was changed so often is refused for something else.
_MOST_CORRECTIONS = 12
# A shorter text may be in a reply by chance.
_SHORTEST_KEY = 8
_MASK = b"***"


class CorrectedError(Exception):
    """The endpoint refused a field of a request. The next try has another value, or does not have the field."""


@dataclass(slots=True)
class Call:
    """Holds a question until it is answered. `most_tokens` limits the reply, and shrinks if the conversation leaves
    less room."""

    question: Question
    session_id: str
    most_tokens: int
    corrections: int = 0


class Caller:
    """Asks the endpoint of `config` in the dialect of `spoken`. `say` hears what is left out."""

    def __init__(self, config: EngineConfig, spoken: Format, say: Callable[[str], None]) -> None:
        key = clean_key(config.key)
        self.spoken = spoken
        self._config = config
        self._say = say
        self._client = HttpClient(config.url, headers=spoken.headers(key))
        self._path = _path_below(config.url, spoken.path)
        self._hidden = _spellings_of(key)
        self._left_out: set[str] = set()
        self._limit = ReplyLimit(spoken.limit_names)

    async def open(self) -> None:
        await self._client.open()

    async def close(self) -> None:
        await self._client.close()

    def sent_tokens(self, call: Call) -> int:
        """Returns the limit of the reply that is sent for a call."""
        return self._limit.tokens_within(call.most_tokens)

    async def send(self, call: Call) -> ServerAnswer:
        """Returns an answer of status 200. Raises CorrectedError, EngineError."""
        body = self._body(call)
        answer = await self._post(body)
        if answer.status != 200:
            self._correct(answer, call, body)
        return answer

    def read(self, answer: ServerAnswer) -> EndpointReply:
        """Raises EngineError; a PassingError that is `unsure` if the answer is no reply and does not say why."""
        try:
            payload = orjson.loads(answer.body)
        except orjson.JSONDecodeError as problem:
            raise _unsure_error(f"it answered 200 with something that is not JSON: {answer.reason()}") from problem
        error = error_inside(answer, payload)
        if error is not None:
            raise error
        try:
            return self.spoken.read(payload)
        except (LookupError, TypeError, AttributeError, ValueError) as problem:
            shown = f"{type(problem).__name__}: {problem}"
            raise _unsure_error(f"its answer has another form than {self.spoken.path} ({shown})") from problem
        except EngineError as problem:
            raise _unsure_error(str(problem)) from problem

    def usage_of(self, answer: ServerAnswer) -> Usage | None:
        """Returns what an answer says to have used, also if it is no reply."""
        try:
            return self.spoken.usage_of(orjson.loads(answer.body))
        except orjson.JSONDecodeError:
            return None

    def _body(self, call: Call) -> dict[str, Any]:
        body = self.spoken.body(call.question, self._config.model)
        for name in self._left_out:
            body.pop(name, None)
        if self._limit.name is not None:
            body[self._limit.name] = self.sent_tokens(call)
        return body

    async def _post(self, body: dict[str, Any]) -> ServerAnswer:
        try:
            answer = await self._client.post(self._path, body, timeout_s=self._config.call_timeout_s)
        except UnreachableError as error:
            # Nothing was sent.
            raise PassingError(str(error)) from error
        except (ServerFailingError, SilentError) as error:
            raise _unsure_error(str(error)) from error
        hidden = answer.body
        for spelling in self._hidden:
            hidden = hidden.replace(spelling, _MASK)
        return replace(answer, body=hidden)

    def _correct(self, answer: ServerAnswer, call: Call, body: dict[str, Any]) -> None:
        """Changes what the next try sends, and raises CorrectedError. Raises the answer's error if no other request
        would be answered."""
        error = error_of(answer)
        call.corrections += 1
        if call.corrections > _MOST_CORRECTIONS:
            raise error
        if isinstance(error, ContextOverflowError):
            shorter = self._shorten(answer, body, error)
            if shorter is None:
                raise error
            call.most_tokens = shorter
        elif answer.status not in (400, 422) or not self._correct_field(answer, body):
            raise error
        raise CorrectedError(str(error)) from error

    def _shorten(self, answer: ServerAnswer, body: dict[str, Any], error: EngineError) -> int | None:
        name = self._limit_in(body)
        if name is None or has_full_prompt(error):
            return None
        return self._limit.shorten(answer, body[name])

    def _correct_field(self, answer: ServerAnswer, body: dict[str, Any]) -> bool:
        return self._leave_out(answer, body) or self._correct_limit(answer, body)

    def _leave_out(self, answer: ServerAnswer, body: dict[str, Any]) -> bool:
        name = refused_field(answer, body)
        if name is None:
            return False
        if name not in self._left_out:
            self._left_out.add(name)
            self._warn(f"refuses {name}={body[name]} ({answer.reason()}): it is left out")
        return True

    def _correct_limit(self, answer: ServerAnswer, body: dict[str, Any]) -> bool:
        name = self._limit_in(body)
        if name is None:
            return False
        before = self._bounds()
        if self._limit.rename(answer, name):
            if self._limit.name is None and before[0] is not None:
                self._warn(f"knows no limit of a reply ({answer.reason()}): its replies have none")
            return True
        if not self._limit.learn_bound(answer, body[name]):
            return False
        if self._bounds() != before:
            sent = self._limit.tokens_within(body[name])
            self._warn(f"refuses {name}={body[name]} ({answer.reason()}): {sent} is sent in its place")
        return True

    def _limit_in(self, body: dict[str, Any]) -> str | None:
        """Returns the name by which a request had the limit. Another call may have changed it since."""
        return next((name for name in self.spoken.limit_names if name in body), None)

    def _bounds(self) -> tuple[str | None, int, int | None]:
        return self._limit.name, self._limit.least_tokens, self._limit.most_tokens

    def _warn(self, words: str) -> None:
        self._say(f"warning: {self._config.model} {words}")


def clean_key(key: str | None) -> str | None:
    """Returns a key without the line break that a file's end leaves."""
    if key is None:
        return None
    return key.strip() or None


def _spellings_of(key: str | None) -> list[bytes]:
    """Returns how texts can spell a key: as it is, in JSON, and in an address."""
    if key is None or len(key) < _SHORTEST_KEY:
        return []
    in_json = orjson.dumps(key)[1:-1].decode()
    spellings = {key, in_json, in_json.replace("/", "\\/"), quote(key), quote(key, safe="")}
    return [spelling.encode() for spelling in sorted(spellings, key=len, reverse=True)]


def _unsure_error(words: str) -> PassingError:
    error = PassingError(words)
    error.unsure = True
    return error


def _path_below(url: str, path: str) -> str:
    """Returns the path that belongs behind the client's address, which has no closing `/v1`. An address with another
    path is meant as it is written."""
    shown = url.strip().rstrip("/")
    has_path = "/" in shown.partition("://")[2]
    if has_path and not shown.endswith("/v1"):
        return path
    return f"/v1{path}"
