"""What a server's answer to one request comes to. Pure.

Invariants:
- Answers of 500 and above are the server's failure; a refusal for length is a ContextOverflowError; any other refusal
  is an EngineError.
- A reply whose tokens were sampled with different weights has no version.
"""

from swe_rl.engine.http_client import Answer, ServerFailingError
from swe_rl.engine.http_wire import Reply, TokenIn, parse_reply, weight_version
from swe_rl.engine.protocol import ContextOverflowError, EngineError, SamplingParams

_OVERFLOW_WORDS = ("maximum context length", "maximum model length", "max_model_len")


class MixedError(Exception):
    """A reply whose tokens were sampled with different weights."""


def understood(answer: Answer, token_in: TokenIn, url: str, prompt_tokens: int, vocab_size: int | None) -> Reply:
    """Raises ContextOverflowError, ServerFailingError, EngineError."""
    if answer.ok:
        return parse_reply(token_in, answer.json(), vocab_size=vocab_size)
    reason = answer.reason()
    if answer.status == 400 and any(words in reason for words in _OVERFLOW_WORDS):
        raise ContextOverflowError(f"{prompt_tokens} prompt tokens do not fit: {reason}")
    kind = ServerFailingError if answer.status >= 500 else EngineError
    raise kind(f"{url} answered {answer.status}: {reason}")


def version_of(reply: Reply, sent: int) -> int:
    """What the server tells of the tokens, or else `sent`, the version that it had when the request was sent.

    Raises MixedError.
    """
    names = list(dict.fromkeys(name for name, _, _ in reply.version_spans))
    if len(names) > 1:
        raise MixedError(f"its weights change while it replies, every time: {', '.join(names)} in one reply")
    told = weight_version(names[0]) if names else None
    return sent if told is None else told


def within(params: SamplingParams, room: int) -> SamplingParams:
    """`room`: tokens that may be sampled."""
    if params.max_tokens <= room:
        return params
    return SamplingParams(room, params.temperature, params.top_p, params.top_k, params.stop_token_ids, params.seed)
