"""What the command line of our own servers asks for: `engine.command`, and `engine.extra_arguments` behind it."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from swe_rl.config.choices import EngineKind
from swe_rl.config.schema import Config
from swe_rl.files.tables import as_mapping

# This variable starts servers of another environment.
VLLM_COMMAND = "SWE_RL_VLLM_COMMAND"
WEIGHTS = "--quantization"
WEIGHTS_CONFIG = "--quantization-config"
CACHE = "--kv-cache-dtype"
_SHORT = {"-sc": "--speculative-config", "-q": WEIGHTS}


class Argument(NamedTuple):
    value: str
    # Names the key of the configuration where the argument is written.
    key: str


def server_arguments(config: Config, environment: Mapping[str, str]) -> dict[str, Argument]:
    """Maps each flag of our own servers' command lines, by its long name, to its value, `--speculative-config.method`
    too.

    The value is empty if none follows.
    """
    engine = config.engine
    if engine.kind is not EngineKind.vllm:
        return {}
    try:
        command = shlex.split(engine.command or environment.get(VLLM_COMMAND, ""))
    except ValueError:
        # No server can be started with it, which is said elsewhere.
        command = []
    servers = [index for index, word in enumerate(command) if word == "serve" or word.startswith("vllm.")]
    # The words before it are flags of what starts it: `srun -q QOS`.
    command = command[servers[-1] + 1 :] if servers else []
    words = [Argument(word, "engine.command") for word in command]
    words += [Argument(word, "engine.extra_arguments") for word in engine.extra_arguments]
    flags = {}
    for (word, key), (following, _) in pairwise([*words, Argument("", "")]):
        name, equals, value = word.partition("=")
        if not equals and not following.startswith("-"):
            value = following
        if name.startswith("-"):
            flags[_long_flag(name)] = Argument(value, key)
    return flags


def with_command(config: Config, environment: Mapping[str, str]) -> Config:
    """Returns the configuration with the command that starts its servers, whoever names it."""
    command = config.engine.command or environment.get(VLLM_COMMAND)
    return replace(config, engine=replace(config.engine, command=command))


def settings_of(given: Mapping[str, Argument], flag: str) -> dict[str, object]:
    """Returns what a flag's JSON says, or `FLAG.name` beside it. JSON with which vLLM does not start says nothing."""
    try:
        written = json.loads(given[flag].value) if flag in given else {}
    except (ValueError, RecursionError):
        written = {}
    inside = {name.partition(".")[2]: given[name].value for name in given if name.startswith(f"{flag}.")}
    return {**as_mapping(written), **inside}


def _long_flag(name: str) -> str:
    flag, dot, inside = name.partition(".")
    flag = flag.replace("_", "-")
    return f"{_SHORT.get(flag, flag)}{dot}{inside}"
