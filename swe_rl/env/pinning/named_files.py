"""Names files that a row's own test command runs or reads, and data that its tests read.

They are the grader's: no patch changes them, unless the known fix does (`pinned.py`). A file that a program compiles or
tests is none of these.
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from swe_rl.env.shell import calls_of

# These programs run the file that they are given.
_INTERPRETERS = frozenset({"bash", "sh", "zsh", "dash", "python", "python3", "node", "deno", "ruby", "perl", "php"})
# The word behind one of these options is a file that decides what runs.
_NAMES_A_FILE = frozenset(
    {"-c", "-f", "--file", "--config", "--config-file", "--rcfile", "-r", "--require", "--import"}
)
_SCRIPTS = (".sh", ".bash", ".py", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".php", ".mk")
_SETTINGS = (".toml", ".ini", ".cfg", ".json", ".yaml", ".yml", ".xml", ".conf")
# This matches expected results that a test names by a path that it writes out.
_DATA = re.compile(
    r"""["'`]((?:[\w.-]+/)*[\w.-]+\.(?:json|jsonl|txt|csv|tsv|xml|ya?ml|html|out|expected|golden|snap|dat|log|stdout))["'`]"""
)


def command_patterns(commands: str) -> list[str]:
    """Returns git pathspecs of the files that `commands` name."""
    return [f":(top,literal){path}" for path in files_named_by(commands)]


def data_patterns(test_patch: str) -> list[str]:
    """Returns git pathspecs of data that the tests of a patch name."""
    names = {match[1] for line in test_patch.split("\n") if line[:1] in "+ " for match in _DATA.finditer(line)}
    return [f":(top,glob)**/{name.removeprefix('./')}" for name in sorted(names) if ".." not in name]


def files_named_by(commands: str) -> list[str]:
    """Returns the files below the working folder that `commands` run, or read to learn what to do."""
    files: list[str] = []
    for call in calls_of(commands):
        words = call.words
        files += _run_by(words)
        for option, value in zip(words, words[1:], strict=False):
            if option in _NAMES_A_FILE and value.endswith((*_SCRIPTS, *_SETTINGS)):
                files.append(value)
        files += [word.partition("=")[2] for word in words if re.match(r"--[\w-]+=.*\.\w+$", word)]
    return list(dict.fromkeys(filter(None, map(_relative_path, files))))


def _run_by(words: Sequence[str]) -> list[str]:
    """Returns the file that a simple command runs: itself, or what it gives to an interpreter."""
    program = PurePosixPath(words[0]).name if words else ""
    if program in ("xargs", "source", "."):
        return _run_by(words[1:])
    if re.sub(r"[\d.]+$", "", program) not in _INTERPRETERS:
        return [word for word in words[:1] if "/" in word or word.endswith(_SCRIPTS)]
    module = next((after for word, after in zip(words, words[1:], strict=False) if word == "-m"), "")
    if module:
        path = module.replace(".", "/")
        places = [f"{root}{path}" for root in ("", "src/")]
        return [name for place in places for name in (f"{place}.py", f"{place}/__main__.py")]
    files = [word for word in words[1:] if not word.startswith("-")]
    return files[:1]


def _relative_path(path: str) -> str:
    """Returns a path relative to the working folder, or nothing for one that is elsewhere."""
    path = path.removeprefix("/testbed/")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return "" if path.startswith(("/", "$", "~")) or ".." in parts or "*" in path else "/".join(parts)
