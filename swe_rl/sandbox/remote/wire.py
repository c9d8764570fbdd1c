"""This module has what the sandbox server and its client say to each other, and is the one place for their names.

Invariants:
- Every answer that is no success has `kind` and `error`: the client raises the very error that the server met.
- The answer of a command may begin with blanks, which are signs of life while it runs. JSON readers skip them.
"""

import base64
import hashlib
import hmac
import math
import re
from dataclasses import dataclass
from typing import Any

from swe_rl.errors import SweRlError, UserError
from swe_rl.sandbox.confined_path import MissingFileError
from swe_rl.sandbox.sandbox import ExecResult, NoSnapshotsError, SandboxError

KEY_HEADER = "X-API-Key"
RUN_HEADER = "X-Run"
SIGN_OF_LIFE_S = 10.0  # While a command runs, the server sends a blank so often.
WAITED_EVERY_S = 1.0  # A client says so often how long its command waited, where that grew.
FULL_STATUS = 429  # All places of the server are taken, and the client asks again.
GONE_STATUS = 404  # The server does not have the workspace, and the client sends it.
ERROR_STATUS = 409  # The answer has an error that the client raises.
_MOST_PLACES = 16
# A place is an absolute path of at most 200 characters.
_PLACE = re.compile(r"(?!.{201})(/[^/\0]+)+", re.DOTALL)


class FolderGoneError(SandboxError):
    """The server does not have a folder that a sandbox is to start from. It can be sent again."""


_KINDS: dict[str, type[SweRlError]] = {
    "user": UserError,
    "missing_file": MissingFileError,
    "no_snapshots": NoSnapshotsError,
    "folder_gone": FolderGoneError,
    "sandbox": SandboxError,
}


@dataclass(frozen=True, slots=True)
class WireFailure:
    """This is an error as it is sent; `kind` says which class of error the client raises."""

    kind: str
    error: str

    def as_json(self) -> dict[str, str]:
        return {"kind": self.kind, "error": self.error}


@dataclass(frozen=True, slots=True)
class ExecOrder:
    """This is a command that a client wants run."""

    command_id: str
    command: str
    timeout_s: float
    env: dict[str, str]
    max_output_bytes: int | None

    @classmethod
    def read(cls, record: Any) -> "ExecOrder":
        """Returns the order in a record. Raises KeyError, TypeError, ValueError or ArithmeticError without one."""
        timeout_s = float(record["timeout_s"])
        env = record.get("env") or {}
        most_bytes = record.get("max_output_bytes")
        if not math.isfinite(timeout_s):
            raise ValueError(f"timeout_s is {timeout_s}")
        if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
            raise TypeError("env is no table of texts")
        return cls(
            command_id=str(record["command_id"]),
            command=str(record["command"]),
            timeout_s=timeout_s,
            env=env,
            max_output_bytes=None if most_bytes is None else int(most_bytes),
        )


def places_of(value: Any) -> tuple[str, ...]:
    """Returns the further folders that a client wants in its sandbox. Raises TypeError or ValueError without a list."""
    if not isinstance(value, list) or not all(isinstance(place, str) for place in value):
        raise TypeError("places is no list of texts")
    if len(value) > _MOST_PLACES:
        raise ValueError(f"{len(value)} places are more than {_MOST_PLACES}")
    for place in value:
        _check_place(place)
    return tuple(value)


def _check_place(place: str) -> None:
    if not _PLACE.fullmatch(place) or {".", ".."} & {*place.split("/")}:
        raise ValueError(f"the place {place[:200]!r} is no absolute path of a folder")


@dataclass(frozen=True, slots=True)
class ToolchainOrder:
    """This is a `Toolchain` whose folder was sent as a workspace."""

    workspace: str
    seen_as: str
    variables: tuple[tuple[str, str], ...]

    def as_json(self) -> dict[str, Any]:
        return {"workspace": self.workspace, "seen_as": self.seen_as, "variables": [*map(list, self.variables)]}

    @classmethod
    def read(cls, record: dict[str, Any]) -> "ToolchainOrder":
        """Returns the order in a record. Raises KeyError, TypeError or ValueError without one."""
        seen_as = str(record["seen_as"])
        pairs = [(name, value) for name, value in record["variables"]]
        _check_place(seen_as)
        if not all(isinstance(text, str) for pair in pairs for text in pair):
            raise TypeError("variables are no pairs of texts")
        return cls(str(record["workspace"]), seen_as, tuple(pairs))


def proof_of(key: str, server: str, challenge: str) -> str:
    """Returns what only a server with the key can answer to a challenge.

    It is asked for before the key is sent to an address out of a file.
    """
    return hmac.new(key.encode(), f"{server}/{challenge}".encode(), hashlib.sha256).hexdigest()


def failure_of(error: SweRlError) -> WireFailure:
    """Returns an error as it is sent."""
    for kind, class_ in _KINDS.items():
        if isinstance(error, class_):
            return WireFailure(kind, str(error))
    return WireFailure("sandbox", str(error))


def error_of(answer: dict[str, Any]) -> SweRlError:
    """Returns the error in an answer. A kind that is not known makes a SandboxError."""
    return _KINDS.get(str(answer.get("kind")), SandboxError)(str(answer.get("error", "the server said nothing")))


def result_to_json(result: ExecResult) -> dict[str, Any]:
    """Returns a result as a record of JSON.

    The output is sent as base64, because it may hold any character, and JSON's escapes would triple it.
    """
    return {
        "exit_code": result.exit_code,
        "output": base64.b64encode(result.output.encode("utf-8", "surrogatepass")).decode(),
        "timed_out": result.timed_out,
        "truncated_bytes": result.truncated_bytes,
        "duration_s": result.duration_s,
    }


def result_from_json(record: dict[str, Any]) -> ExecResult:
    """Returns the result in a record. Raises KeyError, ValueError or TypeError without one."""
    return ExecResult(
        exit_code=int(record["exit_code"]),
        output=base64.b64decode(record["output"]).decode("utf-8", "surrogatepass"),
        timed_out=bool(record["timed_out"]),
        truncated_bytes=int(record["truncated_bytes"]),
        duration_s=float(record["duration_s"]),
    )
