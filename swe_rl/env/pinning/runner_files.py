"""Names files that a row's own test command reads before it tests anything.

They are the grader's: no patch changes them.

A command such as `npm test` says nothing of what it runs: package.json does. So for each program that a command
starts, a table names the files that the program reads to learn what it has to do. Files that the command itself names
belong to them (`-c pytest.ini`, `./run_tests.sh`), and so do the programs that these name in turn (`node run.js` in
package.json).

Invariants:
- A file that the known fix changes is the task's business and is not put back; `pinned.py` sees to that.
- A file that a program compiles or tests is none of these: only what is run, and what says what is run.
"""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from swe_rl.sandbox.protocol import Sandbox, SandboxError

# At most so many files are read to find the programs which they name.
_MOST_FILES = 40
_MOST_CHARS = 200_000  # so much of such a file is read


@dataclass(frozen=True, slots=True)
class Runner:
    """Names programs, and glob patterns of the files that they read wherever these lie. `why` gives the reason."""

    programs: tuple[str, ...]
    files: tuple[str, ...]
    why: str


RUNNERS = (
    Runner(
        ("npm", "npx", "yarn", "pnpm", "bun", "bunx", "node", "deno", "jest", "mocha", "vitest", "ava", "tap", "karma"),
        (
            "package.json",
            ".npmrc",
            ".yarnrc",
            ".yarnrc.yml",
            ".yarn/**",
            ".pnp.*",
            ".pnpmfile.cjs",
            "pnpm-workspace.yaml",
            "bunfig.toml",
            "deno.json",
            "deno.jsonc",
            ".env",
            ".env.test",
            "jest.config.*",
            "jest.setup.*",
            "setupTests.*",
            "babel.config.*",
            ".babelrc",
            ".babelrc.*",
            ".swcrc",
            ".mocharc.*",
            ".mocharc",
            "mocha.opts",
            "vitest.config.*",
            "vitest.workspace.*",
            "vitest.setup.*",
            "vite.config.*",
            "ava.config.*",
            ".taprc",
            "karma.conf.*",
            "jasmine.json",
            "tsconfig*.json",
            "*.test.*",
            "*.spec.*",
            "__tests__/**",
            "__mocks__/**",
            "__snapshots__/**",
        ),
        "package.json says what `npm test` is, .npmrc with which shell, the others what is loaded before and for tests",
    ),
    Runner(
        ("make", "gmake", "cmake", "ctest", "gcc", "cc", "g++", "clang", "meson", "ninja", "bazel"),
        (
            "Makefile",
            "makefile",
            "GNUmakefile",
            "*.mk",
            "CTestTestfile.cmake",
            "meson.build",
            "BUILD",
            "BUILD.*",
        ),
        "a makefile is the command, and GNUmakefile comes first",
    ),
    Runner(
        ("go",),
        ("*_test.go", "testdata/**", "go.work", "go.mod", "vendor/**"),
        "go.work and go.mod say where packages come from, vendor/ holds those that tests are written with",
    ),
    Runner(
        ("cargo",),
        (".cargo/**", "Cargo.toml", "rust-toolchain", "rust-toolchain.toml", "benches/**"),
        ".cargo/config.toml may name another program for each step, Cargo.toml another harness",
    ),
    Runner(
        ("mvn", "mvnw", "gradle", "gradlew", "ant", "sbt"),
        (
            "pom.xml",
            "build.gradle*",
            "settings.gradle*",
            "gradle/**",
            "gradlew",
            "mvnw",
            ".mvn/**",
            "build.xml",
            "gradle.properties",
            "build.sbt",
            "project/**",
        ),
        "the build's own description and wrapper say what is run",
    ),
    Runner(
        ("rake", "rspec", "bundle", "ruby", "minitest", "phpunit", "composer", "php"),
        ("Rakefile", "rakefile", ".rspec", "Gemfile*", "spec/**", "phpunit.xml*", "composer.json"),
        "they name the tests' files and what is loaded before these",
    ),
    Runner(
        ("tox", "nox", "hatch", "pdm", "poetry", "invoke", "just", "task"),
        ("tox.ini", "noxfile.py", "hatch.toml", "tasks.py", "justfile", "Justfile", "Taskfile.*"),
        "they say which command tests",
    ),
)
# These programs run the file that they are given.
_INTERPRETERS = frozenset({"bash", "sh", "zsh", "dash", "python", "python3", "node", "deno", "ruby", "perl", "php"})
# The word behind one of these options is a file that decides what runs.
_NAMES_A_FILE = frozenset(
    {"-c", "-f", "--file", "--config", "--config-file", "--rcfile", "-r", "--require", "--import"}
)
_COMMANDS = re.compile(r"[;&|\n()`]+|\$\(")
_SCRIPTS = (".sh", ".bash", ".py", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".php", ".mk")
_SETTINGS = (".toml", ".ini", ".cfg", ".json", ".yaml", ".yml", ".xml", ".conf")
# This matches expected results that a test names by a path that it writes out.
_DATA = re.compile(
    r"""["'`]((?:[\w.-]+/)*[\w.-]+\.(?:json|jsonl|txt|csv|tsv|xml|ya?ml|html|out|expected|golden|snap|dat|log|stdout))["'`]"""
)


def patterns_of(commands: str) -> list[str]:
    """Returns git pathspecs of what the programs of `commands` read, and of what `commands` name."""
    programs = {PurePosixPath(word).name for words in _split_commands(commands) for word in words}
    files = [name for runner in RUNNERS if programs.intersection(runner.programs) for name in runner.files]
    return [f":(top,glob)**/{name}" for name in files] + [f":(top,literal){path}" for path in files_named_by(commands)]


def data_patterns(test_patch: str) -> list[str]:
    """Returns git pathspecs of data that the tests of a patch name."""
    names = {match[1] for line in test_patch.split("\n") if line[:1] in "+ " for match in _DATA.finditer(line)}
    return [f":(top,glob)**/{name.removeprefix('./')}" for name in sorted(names) if ".." not in name]


async def programs_named_by(sandbox: Sandbox, commands: str) -> list[str]:
    """Returns git pathspecs of the programs that `commands` come to run through files of the tree, as they are now.

    Raises SandboxError where the sandbox itself fails.
    """
    unread = [*files_named_by(commands), *_command_files(commands)]
    seen: dict[str, None] = {}
    while unread and len(seen) < _MOST_FILES:
        path = unread.pop(0)
        if path in seen:
            continue
        try:
            text = (await sandbox.read_file(path))[:_MOST_CHARS].decode("utf-8", "replace")
        except (FileNotFoundError, SandboxError):
            continue
        seen[path] = None
        unread += files_named_by(_commands_in(path, text))
    return [f":(top,literal){path}" for path in seen]


def _command_files(commands: str) -> list[str]:
    """Returns the files in which a program of `commands` finds commands."""
    programs = {PurePosixPath(word).name for words in _split_commands(commands) for word in words}
    places = ["package.json"] if programs & {"npm", "yarn", "pnpm", "bun"} else []
    return places + (["GNUmakefile", "makefile", "Makefile"] if programs & {"make", "gmake"} else [])


def _commands_in(path: str, text: str) -> str:
    """Returns the commands that a file holds, one a line."""
    if path.endswith("package.json"):
        try:
            scripts = json.loads(text).get("scripts", {})
        except (ValueError, AttributeError, RecursionError):
            return ""
        return "\n".join(map(str, scripts.values())) if isinstance(scripts, dict) else ""
    if PurePosixPath(path).name.lower() in ("makefile", "gnumakefile") or path.endswith(".mk"):
        return "\n".join(line.lstrip("\t@-+ ") for line in text.split("\n") if line.startswith("\t"))
    return text if path.endswith((".sh", ".bash")) or text.startswith("#!") else ""


def _split_commands(commands: str) -> Iterator[list[str]]:
    """Yields the words of each simple command, without variables that are set before it."""
    for command in _COMMANDS.split(commands):
        try:
            words = shlex.split(command, comments=True)
        except ValueError:
            words = command.split()
        while words and re.match(r"[A-Za-z_]\w*=", words[0]):
            words = words[1:]
        if words:
            yield words


def files_named_by(commands: str) -> list[str]:
    """Returns the files below the working folder that `commands` run, or read to learn what to do."""
    files: list[str] = []
    for words in _split_commands(commands):
        files += _run_by(words)
        for option, value in zip(words, words[1:], strict=False):
            if option in _NAMES_A_FILE and value.endswith((*_SCRIPTS, *_SETTINGS)):
                files.append(value)
        files += [word.partition("=")[2] for word in words if re.match(r"--[\w-]+=.*\.\w+$", word)]
    return list(dict.fromkeys(filter(None, map(_relative_path, files))))


def _run_by(words: Sequence[str]) -> list[str]:
    """Returns the file that a simple command runs: itself, or what it gives to an interpreter."""
    program = PurePosixPath(words[0]).name
    if program in ("exec", "time", "env", "xargs", "sudo", "timeout", "source", "."):
        return _run_by(words[1:]) if len(words) > 1 else []
    if re.sub(r"[\d.]+$", "", program) not in _INTERPRETERS:
        return [words[0]] if "/" in words[0] or words[0].endswith(_SCRIPTS) else []
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
