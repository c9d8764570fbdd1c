"""What a row's command names is the grader's; what it compiles and tests is not."""

import pytest

from swe_rl.env.grading.log_check import commands_of_tests
from swe_rl.env.pinning.named_files import command_patterns, data_patterns, files_named_by


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("CI=1 npm test", set()),
        ("make -j2 check && ./bin/run", {"bin/run"}),
        ("python -m pytest -c ci/pytest.ini tests", {"ci/pytest.ini"}),
        ("python3 -m checks.run", {"checks/run.py", "src/checks/run/__main__.py"}),
        ("bash ./scripts/test.sh; node run.mjs", {"scripts/test.sh", "run.mjs"}),
        ("mocha --config=ci/mocha.json", {"ci/mocha.json"}),
        (
            "if nice -n 5 ./one.sh; then env -i A=1 bash two.sh; fi <<< word\n./three.sh",
            {"one.sh", "two.sh", "three.sh"},
        ),
        ("timeout 1h ./run.sh && timeout -k 5 -s KILL $LIMIT bash all.sh", {"run.sh", "all.sh"}),
    ],
)
def test_what_a_command_runs_or_reads(command, files):
    patterns = {pattern.partition(")")[2] for pattern in command_patterns(command)}
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


def test_data_that_tests_name():
    patch = "+    assert 3 == json.load(open('testdata/golden.json'))\n-    open('old.csv')\n+    open('../../x.csv')\n"
    assert data_patterns(patch) == [":(top,glob)**/testdata/golden.json"]
