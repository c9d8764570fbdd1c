"""What a row's command reads before it tests is the grader's; what it compiles and tests is not."""

import json

import pytest

from swe_rl.env.grading.log_check import commands_of_tests
from swe_rl.env.pinning.runner_files import (
    data_patterns,
    files_named_by,
    patterns_of,
    programs_named_by,
)
from swe_rl.sandbox.confined_path import MissingFileError


class Tree:
    def __init__(self, files):
        self._files = files

    async def read_file(self, path):
        if path not in self._files:
            raise MissingFileError(path)
        return self._files[path].encode()


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("CI=1 npm test", {"**/package.json", "**/.npmrc"}),
        ("make -j2 check && ./bin/run", {"**/GNUmakefile", "bin/run"}),
        ("cargo test --all", {"**/.cargo/**"}),
        ("go test ./...", {"**/go.work", "**/*_test.go"}),
        ("python -m pytest -c ci/pytest.ini tests", {"ci/pytest.ini"}),
        ("python3 -m checks.run", {"checks/run.py", "src/checks/run/__main__.py"}),
        ("bash ./scripts/test.sh; node run.mjs", {"scripts/test.sh", "run.mjs"}),
        ("mocha --config=ci/mocha.json", {"ci/mocha.json"}),
        ("tox -e py", {"**/tox.ini"}),
    ],
)
def test_what_a_command_runs_or_reads(command, files):
    patterns = {pattern.partition(")")[2] for pattern in patterns_of(command)}
    assert files <= patterns


@pytest.mark.parametrize(
    "command", ["gcc -o check lib/ops.c", "python -m pytest src/pkg", "cat ../x.sh", "/bin/run.sh"]
)
def test_what_a_command_compiles_or_tests_is_the_agents(command):
    assert files_named_by(command) in (
        [],
        ["pytest.py", "pytest/__main__.py", "src/pytest.py", "src/pytest/__main__.py"],
    )


def test_the_commands_are_those_between_the_markers():
    script = "pip install .\n: '>>>>> Start Test Output'\nnpm test\n: '>>>>> End Test Output'\nrm x\n"
    assert "npm test" in commands_of_tests(script) and "pip" not in commands_of_tests(script)


async def test_programs_are_found_through_the_files_that_name_them():
    files = {
        "package.json": json.dumps({"scripts": {"test": "node tools/run.js", "lint": "sh lint.sh"}}),
        "tools/run.js": "require('../lib')",
        "lint.sh": "python tools/lint.py",
        "tools/lint.py": "x = 1",
        "lib/ops.js": "",
    }
    found = await programs_named_by(Tree(files), "npm test")
    assert {one.partition(")")[2] for one in found} == {"package.json", "tools/run.js", "lint.sh", "tools/lint.py"}
    broken = await programs_named_by(Tree({"package.json": "[" * 100_000}), "npm test")
    assert len(broken) == 1


def test_data_that_tests_name():
    patch = "+    assert 3 == json.load(open('testdata/golden.json'))\n-    open('old.csv')\n+    open('../../x.csv')\n"
    assert data_patterns(patch) == [":(top,glob)**/testdata/golden.json"]
