"""Says what an engine is: the base of the embedded engine, of vLLM and of an external server.

Invariants:
- Whatever is asked of one engine may be asked of all: what an engine does not do has a default here that says so.
- Token ids go in, token ids and log-probabilities come out; no text crosses this boundary.
- `logprobs[i]` is the log-probability of `token_ids[i]` over the whole vocabulary at the request's temperature, before
  top_p, top_k and min_p truncate, in float32 from float32 logits. A server that cannot say it is refused or warned of
  before work begins (facts/logprobs.py).
- A sampled stop token is part of `token_ids` (and has a log-probability).
- With a `seed`, a request's tokens do not depend on which other requests share its batch.
- A request that is in flight when new weights come goes on under them at a token's boundary, as one completion: what
  was sampled stays, with its log-probabilities and its version, and nothing that old weights cached is used again.
"""

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt

from swe_rl.algo.row import Routes
from swe_rl.errors import RunError

if TYPE_CHECKING:
    import torch

# It takes an event's name and fields.
Record = Callable[[str, Mapping[str, object]], None]


@dataclass(frozen=True, slots=True)
class ServerLoss:
    """The requests that a lost server left undone, and the seconds that they had been under way, added up."""

    requests: int = 0
    work_s: float = 0.0

    def __str__(self) -> str:
        if not self.requests:
            return "no request was in flight"
        noun = "requests begin"
        if self.requests == 1:
            noun = "request begins"
        return f"{self.requests} {noun} anew ({self.work_s:.1f} s of work lost)"


@dataclass(slots=True)
class LossTeller:
    """Tells of the losses of one engine.

    The events are `engine_lost` (engine, reason, requests, work_s) and `engine_back` (engine, away_s).
    """

    engine: str
    say: Callable[[str], None]
    record: Record
    clock: Callable[[], float] = time.monotonic
    _lost_s: float = field(default=0.0, init=False)

    def lost(self, reason: str, loss: ServerLoss, then: str) -> None:
        """Tells of a loss. `then` says what is done about it."""
        self._lost_s = self.clock()
        self.say(f"{reason}; {loss}; {then}")
        fields = {"engine": self.engine, "reason": reason, "requests": loss.requests, "work_s": round(loss.work_s, 3)}
        self.record("engine_lost", fields)

    def back(self) -> None:
        away_s = self.clock() - self._lost_s
        self.say(f"{self.engine} serves again; it was away for {away_s:.1f} s")
        self.record("engine_back", {"engine": self.engine, "away_s": round(away_s, 3)})


FinishReason = Literal["stop", "length", "abort"]


class EngineError(RunError):
    """An engine failed, died or answered with something that is not a completion.

    `retry_after_s`: it has too much to do, and asks to be left alone for so long. `of_request`: it refused the request
    for what that says, which is no sign that the engine fails.
    """

    retry_after_s: float | None = None
    of_request = False

    def about(self, engine: str) -> "EngineError":
        """Returns the error with the engine's name in front."""
        named = type(self)(f"Engine `{engine}`: {self}")
        named.retry_after_s = self.retry_after_s
        named.of_request = self.of_request
        return named


class ContextOverflowError(EngineError):
    """The prompt leaves no room for a single sampled token within the engine's `max_model_len`."""


class UnchangedError(EngineError):
    """An update was given up before the server took anything."""


class WeightSyncError(EngineError):
    """Some engines did not take new weights; `failures` says why, by engine."""

    def __init__(self, message: str, failures: Mapping[str, EngineError]) -> None:
        super().__init__(message)
        self.failures = dict(failures)

    @classmethod
    def of(cls, failures: Mapping[str, EngineError], count: int, version: int, instead: str = "") -> Self:
        """Returns the error for `failures` of `count` engines. What several say alike is said once.

        `instead` names another way, as a sentence.
        """
        names: dict[str, list[str]] = {}
        for name, failure in failures.items():
            names.setdefault(str(failure), []).append(name)
        reasons = "; ".join(f"{', '.join(who)}: {why}" for why, who in names.items())
        return cls(
            f"The weights of step {version} did not reach {len(failures)} of {count} engines ({reasons}). The run "
            "stops, as they would sample with older ones; trainer.resume=auto goes on from the newest "
            f"checkpoint.{instead}",
            failures,
        )


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    # 0 stands for no limit.
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    # It is known to which experts of a mixture the prompt's tokens before this one went.
    routes_from: int = 0
    # This is the least probability, as a share of the likeliest token's; 0 stands for no limit.
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply of an engine. `weight_version` is that of the last token.

    `token_versions` has one entry a token, where they differ; empty says that all are of `weight_version`. `routes`, of
    a mixture and where asked for, has the experts of each token of prompt and `token_ids`, from the token `routes_from`
    on, but the last one, which the engine has not read (`model/experts.py`).
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    weight_version: int
    cached_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    token_versions: tuple[int, ...] = ()
    routes: Routes | None = field(default=None, compare=False, repr=False)
    routes_from: int = field(default=0, compare=False, repr=False)

    @property
    def weight_versions(self) -> tuple[int, ...]:
        """The weight version of each token."""
        return self.token_versions or (self.weight_version,) * len(self.token_ids)


def join_completions(parts: Sequence[Completion]) -> Completion:
    """Returns one completion that went on after its weights changed: each token with the version that sampled it.

    What the change cost counts as `queue_s`: waiting for it, and computing anew what was there.
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    last = parts[-1]
    versions = tuple(version for part in parts for version in part.weight_versions)
    return replace(
        last,
        token_ids=tuple(token for part in parts for token in part.token_ids),
        logprobs=tuple(logprob for part in parts for logprob in part.logprobs),
        weight_version=versions[-1] if versions else last.weight_version,
        cached_tokens=first.cached_tokens,
        queue_s=sum(part.queue_s for part in parts) + sum(part.prefill_s for part in parts[1:]),
        prefill_s=first.prefill_s,
        decode_s=sum(part.decode_s for part in parts),
        token_versions=versions if len(set(versions)) > 1 else (),
        routes=_joined_routes(parts),
    )


def _joined_routes(parts: Sequence[Completion]) -> Routes | None:
    """Returns the routes with which each token was read first: later parts have read again what was there."""
    known: list[npt.NDArray[Any]] = []
    for part in parts:
        if part.routes is not None:
            known.append(part.routes[sum(map(len, known)) :])
    if known:
        return np.concatenate(known)
    return None


def continue_params(params: SamplingParams, sampled_tokens: int) -> SamplingParams:
    """Returns the parameters for what is left of a request after its first tokens.

    It has a seed of its own, as the same one would draw the same numbers once more.
    """
    seed = params.seed
    if seed is not None and sampled_tokens:
        digest = hashlib.blake2b(f"{seed}+{sampled_tokens}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "little") >> 1
    return replace(params, max_tokens=params.max_tokens - sampled_tokens, seed=seed)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for routing and metrics."""

    running: int
    waiting: int
    kv_used_tokens: int
    kv_capacity_tokens: int
    weight_version: int
    sampled_tokens_total: int = 0
    prefill_tokens_total: int = 0
    # These requests had to be computed anew for want of memory; the number only grows.
    preemptions_total: int = 0
    # So many tokens fit into its tier of cache in the host's memory; 0: it has none, or does not say so.
    host_capacity_tokens: int = 0


class EngineState(Enum):
    up = auto()
    # It starts its own servers, perhaps once more: it ends up or gone, whoever waits for it.
    starting = auto()
    # It is lost until somebody else brings its server back.
    lost = auto()
    # It will not serve again.
    gone = auto()


class Engine(ABC):
    """One engine. `on_change(up)` is called when it is lost (False) and when it serves again (True).

    `restore` gives a server that was started anew the current weights where they are not in a folder, by `adopt` or
    `update_weights` of the client that it is called with.
    """

    on_change: Callable[[bool], None] | None = None
    restore: "Callable[[Engine], Awaitable[None]] | None" = None

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def state(self) -> EngineState:
        return EngineState.up

    @property
    def why_lost(self) -> EngineError | None:
        """The reason of the loss; None while it serves, and before it did."""
        return None

    async def start(self) -> None:
        """Raises UserError, EngineError; nothing is left running then."""

    @abstractmethod
    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, request_id: str, session_id: str | None = None
    ) -> Completion:
        """Returns a reply. Raises ContextOverflowError, or EngineError. Cancelling the awaiting task aborts the
        request.
        """

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """Ends the request with finish_reason `abort` and what it has sampled so far; unknown ids are ignored.

        Raises EngineError where a server does not offer it.
        """

    def release_session(self, session_id: str) -> None:
        """Frees what is kept for a session that is over; unknown ids are ignored. Most engines keep nothing."""

    def stalled_s(self) -> float:
        """Returns the seconds that requests wait at a server without a sign of work; 0 where that cannot happen."""
        return 0.0

    def give_up(self, reason: str) -> None:
        """Fails the requests that a stalled server has; later ones are sent as ever."""

    @abstractmethod
    async def pause(self) -> None:
        """Freezes requests in flight where they are; new ones queue. Raises EngineError."""

    @abstractmethod
    async def resume(self) -> None: ...

    async def sleep(self) -> None:
        """Frees the memory of its GPUs; requests wait. Raises EngineError where it will not serve again.

        An engine that has no memory on a GPU goes on as it is.
        """

    async def may_wake(self) -> None:
        """Gives the GPUs back; the next weights wake the engine. Raises EngineError where it will not serve again."""

    @property
    def wake_s(self) -> float:
        """The seconds that the last waking took."""
        return 0.0

    @abstractmethod
    async def update_weights(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        """Copies `weights` in place (names as in the model's `state_dict`); later samples carry `version`, those of
        requests in flight, too. Raises EngineError.
        """

    async def receiver(self) -> "Engine":
        """Returns the engine whose server takes weights from a trainer's memory, once it is up. Raises EngineError."""
        raise EngineError(f"Engine `{self.name}` is no server that takes weights from a trainer's memory")

    def explained(self, error: EngineError) -> EngineError:
        """Returns the error with what is known of its server's failure beyond the answer."""
        return error

    @abstractmethod
    def stats(self) -> EngineStats: ...

    @abstractmethod
    async def close(self) -> None:
        """Ends the engine. It may be called twice."""

    def _tell(self, up: bool) -> None:
        if self.on_change is not None:
            self.on_change(up)


def worth_asking(engines: Sequence[Engine]) -> list[Engine]:
    """Returns those that serve or will again; where none will, all of them, whose errors then say why."""
    return [engine for engine in engines if engine.state is not EngineState.gone] or list(engines)
