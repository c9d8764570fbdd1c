"""mini-swe-agent as a library: imported without its side effects, and its packaged prompts.

Invariants:
- Nothing of it is imported before it is asked for; it never reads or writes the user's own mini-swe-agent folder.
- litellm is not imported: our model class is the only one that is used.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from swe_rl.errors import UserError

SUBMIT_MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_PACKAGED = {"bash": "swebench_backticks.yaml", "bash_calls": "swebench.yaml"}  # by agent.tools
_ACTION = r"```mswea_bash_command\s*\n(.*?)\n```"  # the fence that the packaged prompts teach


class MiniSweMissingError(UserError):
    """mini-swe-agent is not installed, or is another generation of it."""


@dataclass(frozen=True, slots=True)
class Templates:
    """What the library calls a configuration: Jinja texts and the environment of commands."""

    system: str
    instance: str
    observation: str
    format_error: str
    env: dict[str, str]
    action_pattern: str = _ACTION


@lru_cache(maxsize=1)
def load_library() -> Any:
    """The package. Raises MiniSweMissingError."""
    try:
        with _nobodys_settings():
            import minisweagent
            import minisweagent.agents.default
            import minisweagent.config
            import minisweagent.exceptions
            import minisweagent.models.utils.actions_text
            import minisweagent.models.utils.actions_toolcall  # noqa: F401
    except ImportError as error:
        raise MiniSweMissingError(
            f"agent=mini_swe needs mini-swe-agent ({error}); pip install 'swe_rl[mini_swe]', or choose agent=bash, "
            "which holds the same conversation without it"
        ) from error
    return minisweagent


@contextmanager
def _nobodys_settings() -> Iterator[None]:
    """Its import prints a banner, makes a folder in the user's configuration and loads a .env file from there."""
    before = {name: os.environ.get(name) for name in ("MSWEA_SILENT_STARTUP", "MSWEA_GLOBAL_CONFIG_DIR")}
    with tempfile.TemporaryDirectory(prefix="swe_rl-mini-swe-") as empty:
        os.environ.update(MSWEA_SILENT_STARTUP="1", MSWEA_GLOBAL_CONFIG_DIR=empty)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


@lru_cache(maxsize=len(_PACKAGED))
def packaged_templates(tools: str) -> Templates:
    """The library's own SWE-bench prompts: `bash` with fenced commands, `bash_calls` with function calls."""
    config = load_library().config.get_config_from_spec(_PACKAGED[tools])
    agent, model = config["agent"], config["model"]
    return Templates(
        system=agent["system_template"],
        instance=agent["instance_template"],
        observation=model["observation_template"],
        format_error=model["format_error_template"],
        env={name: str(value) for name, value in config["environment"]["env"].items()},
    )
