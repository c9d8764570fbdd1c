"""Makes test files fail on right code, for tests that no twin can stand beside.

Where the runner is no Python, nothing tells tests from their twins within one session. So these files are for a session
of their own (`grading/second_look.py`).

Invariants:
- The files are changed behind every command of the row's installation, when they have been put back, and drawn anew for
  each grading.
"""

import random
from collections.abc import Mapping
from pathlib import PurePosixPath

from swe_rl.dataset.instance import Instance
from swe_rl.env.grading.log_check import commands_of_tests
from swe_rl.env.patch_files import split_patch
from swe_rl.env.pinning.named_files import files_named_by
from swe_rl.env.twins.siblings import LANGUAGES, poison_file
from swe_rl.sandbox.sandbox import Sandbox, read_texts


def test_files(instance: Instance) -> list[str]:
    """Returns the files of a row's tests in languages for which it is known how to make them fail.

    A module of Python is one of these only where the row names a doctest in it.
    """
    brought = [part.paths[-1] for part in split_patch(instance.test_patch) if not part.is_removed]
    named = [test.partition("::")[0] for test in (*instance.fail_to_pass, *instance.pass_to_pass)]
    commands = commands_of_tests(instance.eval_script)
    files = dict.fromkeys([*brought, *named, *files_named_by(commands)])
    doctests = set(doctest_files(instance))
    suffixes = LANGUAGES.keys() - {".py"}
    return [path for path in files if PurePosixPath(path).suffix in suffixes or path in doctests]


def doctest_files(instance: Instance) -> list[str]:
    """Returns the files whose doctests a row names: `docs/use.rst::use.rst`, or `ops/core.py::ops.core.add`."""
    ids = [test.partition("::") for test in (*instance.fail_to_pass, *instance.pass_to_pass)]
    return list(dict.fromkeys(path for path, _, name in ids if "." in name.partition("[")[0]))


async def poison_files(sandbox: Sandbox, instance: Instance, rng: random.Random, weak: frozenset[str]) -> str:
    """Changes the tests' files in a sandbox so that they fail on right code, and returns their names.

    Nothing is changed or returned where no way to make them fail is known, or where the names are in `weak`. Raises
    SandboxError.
    """
    texts = await read_texts(sandbox, test_files(instance))
    poisoned = {path: poison_file(path, text, rng) for path, text in texts.items()}
    changed = {path: text for path, text in poisoned.items() if text}
    names = " ".join(changed)
    if names in weak:
        return ""
    await _write_texts(sandbox, changed)
    return names


async def write_files_anew(sandbox: Sandbox, instance: Instance) -> None:
    """Writes the tests' files as they are, so that their times do not tell them from poisoned ones.

    Raises SandboxError.
    """
    await _write_texts(sandbox, await read_texts(sandbox, test_files(instance)))


async def _write_texts(sandbox: Sandbox, texts: Mapping[str, str]) -> None:
    for path, text in texts.items():
        await sandbox.write_file(path, text.encode("utf-8"))
