"""Finds out what a server can do by asking it once, before any work depends on it.

Invariants:
- A server that cannot serve a run is refused here with one UserError that names the way out, never later by a failed
  trajectory.
- The probe samples a few tokens and changes nothing on the server: POST-only routes are asked with GET (405: there).
- A server that accepts a request and does not answer is named while we wait, and given up.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from swe_rl.config.choices import LogprobsMode
from swe_rl.config.schema import Config
from swe_rl.engine.engine import EngineError, SamplingParams
from swe_rl.engine.server.client import HttpClient, ServerAnswer
from swe_rl.engine.server.monitor import parse_metrics
from swe_rl.engine.server.wire import ADAPTER_ROUTE, BadNumbersError, Reply, TokenIn, parse_reply, request_body
from swe_rl.errors import UserError
from swe_rl.facts import logprobs
from swe_rl.facts.memory import cached_token_bytes
from swe_rl.facts.schedule import scaled_temperature
from swe_rl.facts.sizes import wants_routes

# These are the first and the last minor version.
SUPPORTED = ((0, 26), (0, 33))
# job=serve answers so: whatever its version, it is asked what it can do.
_OURS = "swe_rl"
_VERSION = re.compile(r"(\d+)\.(\d+)")
_PROBE = SamplingParams(max_tokens=logprobs.ASKED_TOKENS, temperature=1.0, top_k=1, seed=1)
# After this long a person wants to know what is waited for.
SILENT_S = 5.0


class ServerRefusedError(UserError):
    """A server lacks what the run needs."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run needs of a server. `model` None stands for whatever it serves.

    `accepted` says over which tokens its log-probabilities may be; `temperature` is the rollouts'. `num_experts`:
    replies have to tell which of so many each token went to; 0: they need not.
    """

    model: str | None
    max_model_len: int
    accepted: frozenset[LogprobsMode] = frozenset(LogprobsMode)
    temperature: float = 1.0
    # rollout.top_p, top_k or min_p truncate what is trained.
    truncated: bool = False
    # None stands for whatever the server has.
    vocab_size: int | None = None
    num_experts: int = 0
    # The keys and values of one token; 0: not known.
    token_bytes: int = 0


def needs_of_run(config: Config) -> Needs:
    """Returns what a server must offer for this run."""
    return Needs(
        model=None,
        max_model_len=config.engine.max_model_len,
        accepted=logprobs.accepted_modes(config),
        temperature=scaled_temperature(config.rollout),
        truncated=logprobs.trains_truncated(config),
        vocab_size=config.model.vocab_size,
        num_experts=config.model.num_experts if wants_routes(config) else 0,
        token_bytes=cached_token_bytes(config),
    )


@dataclass(frozen=True, slots=True)
class Patience:
    """The patience with a server that does not answer a request of the probe. `say` hears of it before it
    is given up.
    """

    limit_s: float = 30.0
    say: Callable[[str], None] = lambda _: None

    async def wait(self, asked: Awaitable[ServerAnswer], place: str) -> ServerAnswer:
        """Returns the answer. Raises what asking raises."""
        asking = asyncio.ensure_future(asked)
        try:
            if not (await asyncio.wait({asking}, timeout=SILENT_S))[0]:
                self.say(f"{place} has not answered for {SILENT_S:g} s; it is given up after {self.limit_s:g} s")
            return await asking
        finally:
            asking.cancel()


@dataclass(frozen=True, slots=True)
class Features:
    version: str
    model: str
    max_model_len: int
    token_in: TokenIn
    logprobs: LogprobsMode
    # It tells queue, prefill and decode times of each request.
    timings: bool
    cached_tokens: bool
    # It tells the weight version of each token.
    weight_spans: bool
    metrics: bool
    pause: bool
    # It reads weights from a folder.
    reload: bool
    # It takes weights over NCCL or IPC.
    weight_transfer: bool
    # It takes a name for its weights.
    version_stamp: bool
    sleep: bool
    render: bool
    # It takes adapters while it runs.
    adapters: bool

    def __str__(self) -> str:
        names = ("timings", "cached_tokens", "weight_spans", "metrics", "pause", "reload", "weight_transfer")
        able = [name for name in (*names, "version_stamp", "sleep", "render", "adapters") if getattr(self, name)]
        return (
            f"vLLM {self.version} serves {self.model}, {self.max_model_len} tokens, ids through {self.token_in.value}, "
            f"{self.logprobs} log-probabilities; {', '.join(able) or 'nothing else'}"
        )


async def probe_server(client: HttpClient, needs: Needs, patience: Patience | None = None) -> Features:
    """Returns what a server can do.

    Raises ServerRefusedError; EngineError when the server cannot be reached, is silent or fails.
    """
    patience = patience or Patience()
    version = await _ask_version(client, patience)
    model, max_model_len = await _ask_model(client, needs, patience)
    kind, reply = await _token_in(client, model, needs, patience)
    reported = await _ask_logprobs_mode(client, kind, model, needs, patience, reply)
    if reported not in needs.accepted:
        raise ServerRefusedError(
            f"{client.url} {': '.join(logprobs.describe_refusal(reported, needs.temperature, needs.truncated))}"
        )
    if needs.truncated and reported is LogprobsMode.processed:
        patience.say(f"{client.url} {logprobs.COUNTS_TRUNCATION}")
    metrics, *routes = await asyncio.gather(_has_metrics(client), *(_has_route(client, path) for path in _ROUTES))
    pause, reload, transfer, stamp, sleep, render, adapters = routes
    return Features(
        version=version,
        model=model,
        max_model_len=max_model_len,
        token_in=kind,
        logprobs=reported,
        timings=reply.decode_s is not None,
        cached_tokens=reply.cached_tokens is not None,
        weight_spans=bool(reply.version_spans),
        metrics=metrics,
        pause=pause,
        reload=reload,
        weight_transfer=transfer,
        version_stamp=stamp,
        sleep=sleep,
        render=render,
        adapters=adapters,
    )


_ROUTES = (
    "/pause",
    "/collective_rpc",
    "/init_weight_transfer_engine",
    "/update_weight_version",
    "/sleep",
    "/v1/chat/completions/render",
    ADAPTER_ROUTE,
)


async def _ask_version(client: HttpClient, patience: Patience) -> str:
    answer = await _get_patiently(client, "/version", patience)
    _check_key(client, answer)
    text = str(_read_field(answer, "version") or "")
    if _read_field(answer, "server") == _OURS:
        return text
    match = _VERSION.match(text)
    first, last = SUPPORTED
    if not answer.ok or match is None:
        raise ServerRefusedError(
            f"{client.url} is no vLLM server: it has no /version (it answered {answer.status}). Give the address of "
            f"vLLM {_minor_version(first)} to {_minor_version(last)} in engine.urls"
        )
    if not first <= (int(match[1]), int(match[2])) <= last:
        raise ServerRefusedError(
            f"{client.url} runs vLLM {text}; supported are {_minor_version(first)} to {_minor_version(last)}: "
            "install one of them there"
        )
    return text


async def _get_patiently(client: HttpClient, path: str, patience: Patience) -> ServerAnswer:
    return await patience.wait(client.get(path, timeout_s=patience.limit_s), client.url + path)


async def _ask_model(client: HttpClient, needs: Needs, patience: Patience) -> tuple[str, int]:
    """Returns the name under which the server knows the wanted model, and its longest sequence."""
    answer = await _get_patiently(client, "/v1/models", patience)
    _check_key(client, answer)
    served = _read_field(answer, "data")
    if not answer.ok or not isinstance(served, list) or not served:
        raise EngineError(f"{client.url}/v1/models answered {answer.status}: {answer.reason()}")
    names = [str(entry.get("id")) for entry in served]
    entry = next((model for model in served if needs.model in (None, model.get("id"), model.get("root"))), None)
    if entry is None:
        raise ServerRefusedError(
            f"{client.url} does not serve {needs.model}, only {', '.join(names)}: set engine.served_model to one of "
            "them, or start the server with the model of this run"
        )
    # An adapter's limit is its base model's.
    limit = entry.get("max_model_len") or served[0].get("max_model_len") or 0
    if limit < needs.max_model_len:
        raise ServerRefusedError(
            f"{client.url} takes sequences of {limit} tokens, fewer than engine.max_model_len={needs.max_model_len}: "
            f"start it with --max-model-len {needs.max_model_len}, or lower rollout.max_trajectory_tokens"
        )
    return str(entry["id"]), int(limit)


async def _ask_logprobs_mode(
    client: HttpClient, kind: TokenIn, model: str, needs: Needs, patience: Patience, reply: Reply
) -> LogprobsMode:
    """Returns over which tokens its log-probabilities are. `reply` is that to the first question. Raises
    EngineError.
    """
    asking = logprobs.find_mode(needs.accepted, needs.temperature)
    next(asking)
    try:
        while True:
            question = asking.send(logprobs.ProbeAnswer(reply.token_ids, reply.logprobs))
            params = replace(_PROBE, temperature=question.temperature)
            again, why = await _try_request(client, kind, model, needs, patience, question.prompt_ids, params)
            if again is None:
                raise EngineError(f"{client.url}{kind.value}, asked once more: {why}")
            reply = again
    except StopIteration as end:
        mode: LogprobsMode = end.value
        return mode


async def _token_in(client: HttpClient, model: str, needs: Needs, patience: Patience) -> tuple[TokenIn, Reply]:
    """Returns the richer of the two ways that the server offers, and what it answered."""
    first, why_first = await _try_request(client, TokenIn.completions, model, needs, patience)
    if first is not None and first.decode_s is not None:
        return TokenIn.completions, first
    second, why_second = await _try_request(client, TokenIn.generate, model, needs, patience)
    if second is not None:
        return TokenIn.generate, second
    if first is not None:
        return TokenIn.completions, first
    if all("trainer.routing_replay" in why for why in (why_first, why_second)):
        raise ServerRefusedError(f"{client.url} is of no use here: {why_first}")
    failed = any(why.startswith(_FAILED) for why in (why_first, why_second))
    raise ServerRefusedError(
        f"{client.url} does not take token ids and return token ids with log-probabilities: "
        f"{TokenIn.completions.value}: {why_first}; {TokenIn.generate.value}: {why_second}. "
        + ("The server fails: its log says why" if failed else _BOTH_WAYS)
    )


_FAILED = "it answered 5"
_BOTH_WAYS = "Both are part of a plain `vllm serve`; a proxy in front of it may have removed them"


async def _try_request(
    client: HttpClient,
    kind: TokenIn,
    model: str,
    needs: Needs,
    patience: Patience,
    prompt_ids: tuple[int, ...] = logprobs.PROMPT_IDS,
    params: SamplingParams = _PROBE,
) -> tuple[Reply | None, str]:
    """Returns the reply, or why there is none."""
    body = request_body(kind, prompt_ids, params, model=model, request_id="probe")
    asked = client.post(kind.value, body, timeout_s=patience.limit_s)
    answer = await patience.wait(asked, client.url + kind.value)
    # 403 is another matter: newer servers switch /inference/v1/generate off so.
    if answer.status == 401:
        _check_key(client, answer)
    if not answer.ok:
        return None, f"it answered {answer.status}: {answer.reason()}"
    try:
        sizes = {"prompt_tokens": len(prompt_ids), "num_experts": needs.num_experts}
        reply = parse_reply(kind, answer.json(), vocab_size=needs.vocab_size, **sizes)
    except BadNumbersError as error:
        raise ServerRefusedError(
            f"{client.url}{kind.value} answers with numbers that no sound model gives: {error}. Look at the server's "
            "checkpoint, its dtype and quantisation, and its log"
        ) from error
    except EngineError as error:
        return None, str(error)
    if len(reply.token_ids) != _PROBE.max_tokens:
        return None, f"{len(reply.token_ids)} tokens instead of {_PROBE.max_tokens}: it does not obey ignore_eos"
    return reply, ""


async def _has_route(client: HttpClient, path: str) -> bool:
    try:
        answer = await client.get(path)
    except EngineError:
        return False
    return answer.status == 405


async def _has_metrics(client: HttpClient) -> bool:
    try:
        answer = await client.get("/metrics")
    except EngineError:
        return False
    return answer.ok and parse_metrics(answer.body.decode(errors="replace")) is not None


def _check_key(client: HttpClient, answer: ServerAnswer) -> None:
    if answer.status in (401, 403):
        raise ServerRefusedError(
            f"{client.url} refuses the request ({answer.status}): give its key as VLLM_API_KEY in the environment"
        )


def _read_field(answer: ServerAnswer, name: str) -> Any:
    """Returns a field of an answer; None where the answer is not an object with such a field."""
    if not answer.ok:
        return None
    try:
        body = answer.json()
    except EngineError:
        return None
    if isinstance(body, dict):
        return body.get(name)
    return None


def minor_version(text: str) -> tuple[int, int]:
    """Returns vLLM's major and minor version; (0, 0) for what is none."""
    match = _VERSION.match(text)
    if match:
        return (int(match[1]), int(match[2]))
    return (0, 0)


def _minor_version(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
