"""What a server can do, found out by asking it once, before any work depends on it.

Invariants:
- A server that cannot serve a run is refused here with one UserError that names the way out, never later by a
  failed trajectory.
- The probe samples a few tokens and changes nothing on the server: POST-only routes are asked with GET (405: there).
- A server that accepts a request and does not answer is named while we wait, and given up.
"""

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from swe_rl.config.choices import LogprobsMode
from swe_rl.config.schema import Config
from swe_rl.engine.protocol import EngineError, SamplingParams
from swe_rl.engine.server.client import HttpClient, ServerAnswer
from swe_rl.engine.server.monitor import parse_metrics
from swe_rl.engine.server.wire import BadNumbersError, Reply, TokenIn, parse_reply, request_body
from swe_rl.errors import UserError
from swe_rl.plan.sizes import wants_routes

SUPPORTED = ((0, 26), (0, 33))  # first and last minor version
_OURS = "swe_rl"  # job=serve: whatever its version, what it can do is asked
_VERSION = re.compile(r"(\d+)\.(\d+)")
_PROBE_IDS = (1, 2, 3, 5, 8, 13, 21, 34)
# With top_k=1 the sampling distribution is one token, or k of which none is likelier: bfloat16 logits often tie. Each
# of its log-probabilities is -ln k then; raw ones are anything.
_PROBE = SamplingParams(max_tokens=8, temperature=1.0, top_k=1, seed=1)
_MOST_TIES, _TIE_NATS = 8, 1e-4
SILENT_S = 5.0  # then a person wants to know what is waited for


class ServerRefusedError(UserError):
    """A server lacks what the run needs."""


@dataclass(frozen=True, slots=True)
class Needs:
    """`processed_logprobs`: they must be those of the sampling distribution; `model` None: whatever it serves.
    `num_experts`: replies have to tell which of so many each token went to; 0: they need not."""

    model: str | None
    max_model_len: int
    processed_logprobs: bool
    vocab_size: int | None = None  # None: whatever it has
    num_experts: int = 0


def needs(config: Config) -> Needs:
    """What a server must offer for this run."""
    rollout = config.rollout
    plain = rollout.temperature == 1.0 and rollout.top_p == 1.0 and rollout.top_k == 0
    return Needs(
        model=None,
        max_model_len=config.engine.max_model_len,
        processed_logprobs=config.engine.logprobs_mode is LogprobsMode.processed and not plain,
        vocab_size=config.model.vocab_size,
        num_experts=config.model.num_experts if wants_routes(config) else 0,
    )


@dataclass(frozen=True, slots=True)
class Patience:
    """With a server that does not answer a request of the probe: `say` hears of it before it is given up."""

    limit_s: float = 30.0
    say: Callable[[str], None] = lambda _: None

    async def wait(self, asked: Awaitable[ServerAnswer], place: str) -> ServerAnswer:
        """Raises what asking raises."""
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
    timings: bool  # queue, prefill and decode times of each request
    cached_tokens: bool
    weight_spans: bool  # the weight version of each token
    metrics: bool
    pause: bool
    reload: bool  # weights from a folder
    weight_transfer: bool  # weights over NCCL or IPC
    version_stamp: bool  # takes a name for its weights
    sleep: bool
    render: bool
    adapters: bool  # takes adapters while it runs

    def __str__(self) -> str:
        names = ("timings", "cached_tokens", "weight_spans", "metrics", "pause", "reload", "weight_transfer")
        able = [name for name in (*names, "version_stamp", "sleep", "render", "adapters") if getattr(self, name)]
        return (
            f"vLLM {self.version} serves {self.model}, {self.max_model_len} tokens, ids through {self.token_in.value}, "
            f"{self.logprobs} log-probabilities; {', '.join(able) or 'nothing else'}"
        )


async def probe(client: HttpClient, needs: Needs, patience: Patience | None = None) -> Features:
    """Raises ServerRefusedError; EngineError when the server cannot be reached, is silent or fails."""
    patience = patience or Patience()
    version = await _version(client, patience)
    model, max_model_len = await _model(client, needs, patience)
    kind, reply = await _token_in(client, model, needs, patience)
    logprobs = LogprobsMode.processed if all(map(_of_ties, reply.logprobs)) else LogprobsMode.raw
    if needs.processed_logprobs and logprobs is LogprobsMode.raw:
        raise ServerRefusedError(
            f"{client.url} returns log-probabilities from before temperature and truncation, which are not those of "
            "what is sampled here: start it with --logprobs-mode processed_logprobs, or sample with "
            "rollout.temperature=1.0 rollout.top_p=1.0 rollout.top_k=0"
        )
    metrics, *routes = await asyncio.gather(_has_metrics(client), *(_has_route(client, path) for path in _ROUTES))
    pause, reload, transfer, stamp, sleep, render, adapters = routes
    return Features(
        version=version,
        model=model,
        max_model_len=max_model_len,
        token_in=kind,
        logprobs=logprobs,
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


ADAPTER_ROUTE = "/v1/load_lora_adapter"
_ROUTES = (
    "/pause",
    "/collective_rpc",
    "/init_weight_transfer_engine",
    "/update_weight_version",
    "/sleep",
    "/v1/chat/completions/render",
    ADAPTER_ROUTE,
)


async def _version(client: HttpClient, patience: Patience) -> str:
    answer = await _got(client, "/version", patience)
    _check_key(client, answer)
    text = str(_field(answer, "version") or "")
    if _field(answer, "server") == _OURS:
        return text
    match = _VERSION.match(text)
    first, last = SUPPORTED
    if not answer.ok or match is None:
        raise ServerRefusedError(
            f"{client.url} is no vLLM server: it has no /version (it answered {answer.status}). Give the address of "
            f"vLLM {_minor(first)} to {_minor(last)} in engine.urls"
        )
    if not first <= (int(match[1]), int(match[2])) <= last:
        raise ServerRefusedError(
            f"{client.url} runs vLLM {text}; supported are {_minor(first)} to {_minor(last)}: install one of them there"
        )
    return text


async def _got(client: HttpClient, path: str, patience: Patience) -> ServerAnswer:
    return await patience.wait(client.get(path, timeout_s=patience.limit_s), client.url + path)


async def _model(client: HttpClient, needs: Needs, patience: Patience) -> tuple[str, int]:
    """The name under which the server knows the wanted model, and its longest sequence."""
    answer = await _got(client, "/v1/models", patience)
    _check_key(client, answer)
    served = _field(answer, "data")
    if not answer.ok or not isinstance(served, list) or not served:
        raise EngineError(f"{client.url}/v1/models answered {answer.status}: {answer.reason()}")
    names = [str(entry.get("id")) for entry in served]
    entry = next((model for model in served if needs.model in (None, model.get("id"), model.get("root"))), None)
    if entry is None:
        raise ServerRefusedError(
            f"{client.url} does not serve {needs.model}, only {', '.join(names)}: set engine.served_model to one of "
            "them, or start the server with the model of this run"
        )
    limit = entry.get("max_model_len") or served[0].get("max_model_len") or 0  # an adapter's is its base model's
    if limit < needs.max_model_len:
        raise ServerRefusedError(
            f"{client.url} takes sequences of {limit} tokens, fewer than engine.max_model_len={needs.max_model_len}: "
            f"start it with --max-model-len {needs.max_model_len}, or lower rollout.max_trajectory_tokens"
        )
    return str(entry["id"]), int(limit)


def _of_ties(logprob: float) -> bool:
    """Whether it may be that of one of a few equally likely tokens."""
    tied = round(math.exp(-logprob)) if logprob > -math.log(_MOST_TIES + 1) else 0
    return 1 <= tied <= _MOST_TIES and abs(logprob + math.log(tied)) <= _TIE_NATS


async def _token_in(client: HttpClient, model: str, needs: Needs, patience: Patience) -> tuple[TokenIn, Reply]:
    """The richer of the two ways that the server offers, and what it answered."""
    first, why_first = await _try(client, TokenIn.completions, model, needs, patience)
    if first is not None and first.decode_s is not None:
        return TokenIn.completions, first
    second, why_second = await _try(client, TokenIn.generate, model, needs, patience)
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


async def _try(
    client: HttpClient, kind: TokenIn, model: str, needs: Needs, patience: Patience
) -> tuple[Reply | None, str]:
    """The reply, or why there is none."""
    body = request_body(kind, _PROBE_IDS, _PROBE, model=model, request_id="probe")
    asked = client.post(kind.value, body, timeout_s=patience.limit_s)
    answer = await patience.wait(asked, client.url + kind.value)
    if answer.status == 401:  # 403: newer servers switch /inference/v1/generate off so
        _check_key(client, answer)
    if not answer.ok:
        return None, f"it answered {answer.status}: {answer.reason()}"
    try:
        sizes = {"prompt_tokens": len(_PROBE_IDS), "num_experts": needs.num_experts}
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


def _field(answer: ServerAnswer, name: str) -> Any:
    """None where the answer is not an object with such a field."""
    if not answer.ok:
        return None
    try:
        body = answer.json()
    except EngineError:
        return None
    return body.get(name) if isinstance(body, dict) else None


def minor_version(text: str) -> tuple[int, int]:
    """Of vLLM's; (0, 0) for what is none."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _minor(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
