"""How a vLLM server is started here: which program, up to its arguments.

Invariants:
- Nothing is imported or run to find out.
"""

import importlib.metadata
import importlib.util
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import PurePath

from swe_rl.errors import UserError
from swe_rl.plan.weight_sync import VLLM_COMMAND

_SERVE = ("-m", "vllm.entrypoints.cli.main", "serve")
_API_SERVER = ("-m", "vllm.entrypoints.openai.api_server")


class NoVllmError(UserError):
    """engine=vllm on a machine without vLLM."""


def vllm_command(environ: Mapping[str, str]) -> tuple[str, ...]:
    """SWE_RL_VLLM_COMMAND, or this interpreter's vLLM, or the one on PATH. Raises NoVllmError.

    The variable may name an interpreter, `vllm`, or a whole command.
    """
    if environ.get(VLLM_COMMAND):
        return complete(shlex.split(environ[VLLM_COMMAND]))
    if importlib.util.find_spec("vllm") is not None:
        return (sys.executable, *(_SERVE if _is_installed("vllm") else _API_SERVER))
    found = shutil.which("vllm", path=environ.get("PATH"))
    if found is not None:
        return (found, "serve")
    raise NoVllmError(
        f"engine=vllm: vLLM is not installed here. Install the extra `gpu`, name the command in {VLLM_COMMAND} "
        "(/path/to/python of another environment will do), or choose engine=embedded or engine=external"
    )


def complete(words: list[str]) -> tuple[str, ...]:
    """A bare interpreter or a bare `vllm` with what is missing to start a server."""
    last = PurePath(words[-1]).name
    if last.startswith("python"):
        # The CPU build is another distribution, which `vllm serve` does not accept; its API server does.
        return (*words, *_API_SERVER)
    return (*words, "serve") if last == "vllm" else tuple(words)


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
