"""Rows in SWE-bench's columns that name the command of their tests, and carry no script.

SWE-rebench: `install_config`, an object or its JSON, with `test_cmd`, `log_parser`, and what comes before the tests
(`eval_commands`, `install`). SWE-bench-Live: `test_cmds`, whose log is pytest's.

Invariants:
- They become the official script around that command; a script of the row's own is kept.
- The files of the test patch follow SWE-rebench's command, as its own harness has it; SWE-bench-Live's run as they are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from swe_rl.env.grading.swebench_spec import Recipe, eval_script
from swe_rl.env.instance import Instance, InstanceError

_REBENCH, _LIVE = "install_config", "test_cmds"
_PARSER_OF = {"pytest": "parse_log_pytest"}  # as SWE-bench-Live calls it; its reader is SWE-bench's


def with_script(instance: Instance, record: Mapping[str, Any], where: str) -> Instance:
    """`instance` as the record has it, with a script where the record names a command. Raises InstanceError."""
    if instance.eval_script:
        return instance
    if record.get(_REBENCH):
        recipe = _of_rebench(_settings(record[_REBENCH], where), where)
    elif record.get(_LIVE):
        recipe = _of_live(record, where)
    else:
        return instance
    return replace(
        instance, eval_script=eval_script(instance, recipe), log_parser=recipe.parser, eval_type="pass_and_fail"
    )


def _settings(value: Any, where: str) -> Mapping[str, Any]:
    try:
        settings = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise InstanceError(f"{where}: column {_REBENCH!r} is a string but not JSON: {error}") from error
    if not isinstance(settings, Mapping):
        raise InstanceError(f"{where}: column {_REBENCH!r} must be an object, as SWE-rebench has it")
    return settings


def _of_rebench(settings: Mapping[str, Any], where: str) -> Recipe:
    command, parser = settings.get("test_cmd"), settings.get("log_parser")
    if isinstance(command, list | tuple):
        raise InstanceError(
            f"{where}: {_REBENCH}.test_cmd is a list, as SWE-rebench V2 has it. Its trees are not in /testbed, and its "
            "readers of logs are in no package, so it cannot be graded here; nebius/SWE-rebench can"
        )
    if not isinstance(command, str) or not command.strip():
        raise InstanceError(f"{where}: {_REBENCH} holds no test_cmd, which says how the tests are run")
    install = "\n".join(_lines(settings, "install", where))
    before = tuple(_lines(settings, "eval_commands", where))
    return Recipe(test=command.strip(), install=install, parser=str(parser or "parse_log_pytest"), before=before)


def _of_live(record: Mapping[str, Any], where: str) -> Recipe:
    commands = _lines(record, _LIVE, where)
    parser = str(record.get("log_parser") or record.get("parser") or "pytest").strip()
    before = tuple(_lines(record, "rebuild_cmds", where))
    parser = _PARSER_OF.get(parser.lower(), parser)
    return Recipe(test="\n".join(commands), install="", parser=parser, before=before, names_files=False)


def _lines(settings: Mapping[str, Any], key: str, where: str) -> Sequence[str]:
    """One command, or a list of them; none for null."""
    value = settings.get(key) or ()
    commands = [value] if isinstance(value, str) else value
    if not isinstance(commands, list | tuple) or not all(isinstance(command, str) for command in commands):
        raise InstanceError(f"{where}: {key!r} must be a command or a list of commands")
    return [command for command in commands if command.strip()]
