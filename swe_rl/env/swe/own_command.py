"""Reads rows in SWE-bench's columns that name the command of their tests and carry no script.

SWE-rebench has `install_config`, an object or its JSON, with `test_cmd`, `log_parser`, and what comes before the tests
(`eval_commands`, `install`). SWE-bench-Live has `test_cmds`, whose log is pytest's.

Invariants:
- Such rows get the official script around that command; a script of the row's own is kept.
- The files of the test patch follow SWE-rebench's command, as its own harness has it; SWE-bench-Live's run as they are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.grading.swebench_spec import TestRecipe, eval_script

_REBENCH = "install_config"
_LIVE = "test_cmds"
# SWE-bench-Live calls the reader of pytest's log so; SWE-bench has it under this name.
_PARSER_OF = {"pytest": "parse_log_pytest"}


def with_script(instance: Instance, record: Mapping[str, Any], where: str) -> Instance:
    """Returns `instance`, with a script where the record names a command. Raises InstanceError."""
    if instance.eval_script:
        return instance
    if record.get(_REBENCH):
        recipe = _of_rebench(_read_settings(record[_REBENCH], where), where)
    elif record.get(_LIVE):
        recipe = _of_live(record, where)
    else:
        return instance
    return replace(
        instance, eval_script=eval_script(instance, recipe), log_parser=recipe.parser, eval_type="pass_and_fail"
    )


def _read_settings(value: Any, where: str) -> Mapping[str, Any]:
    try:
        settings = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise InstanceError(f"{where}: column {_REBENCH!r} is a string but not JSON: {error}") from error
    if not isinstance(settings, Mapping):
        raise InstanceError(f"{where}: column {_REBENCH!r} must be an object, as SWE-rebench has it")
    return settings


def _of_rebench(settings: Mapping[str, Any], where: str) -> TestRecipe:
    """Returns how a row of SWE-rebench runs its tests. Raises InstanceError."""
    command = settings.get("test_cmd")
    parser = settings.get("log_parser")
    if isinstance(command, list | tuple):
        raise InstanceError(
            f"{where}: {_REBENCH}.test_cmd is a list, as SWE-rebench V2 has it. Its trees are not in /testbed, and its "
            "readers of logs are in no package, so it cannot be graded here; nebius/SWE-rebench can"
        )
    if not isinstance(command, str) or not command.strip():
        raise InstanceError(f"{where}: {_REBENCH} holds no test_cmd, which says how the tests are run")
    install = "\n".join(_command_lines(settings, "install", where))
    before = tuple(_command_lines(settings, "eval_commands", where))
    return TestRecipe(test=command.strip(), install=install, parser=str(parser or "parse_log_pytest"), before=before)


def _of_live(record: Mapping[str, Any], where: str) -> TestRecipe:
    """Returns how a row of SWE-bench-Live runs its tests. Raises InstanceError."""
    commands = _command_lines(record, _LIVE, where)
    parser = str(record.get("log_parser") or record.get("parser") or "pytest").strip()
    before = tuple(_command_lines(record, "rebuild_cmds", where))
    parser = _PARSER_OF.get(parser.lower(), parser)
    return TestRecipe(test="\n".join(commands), install="", parser=parser, before=before, names_files=False)


def _command_lines(settings: Mapping[str, Any], key: str, where: str) -> Sequence[str]:
    """Returns the commands of a key that holds one command or a list of them; null gives none. Raises InstanceError."""
    value = settings.get(key) or ()
    commands = [value] if isinstance(value, str) else value
    if not isinstance(commands, list | tuple) or not all(isinstance(command, str) for command in commands):
        raise InstanceError(f"{where}: {key!r} must be a command or a list of commands")
    return [command for command in commands if command.strip()]
