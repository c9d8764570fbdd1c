"""Rows whose runner is no Python and whose exit status decides: the known fix is paid, and no trick is."""

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from swe_rl.dataset.instance import Instance
from swe_rl.env.bugs.workspace import commit_tree, run_git
from swe_rl.env.grading.make import grade_by_eval_script
from swe_rl.sandbox.sandbox import Workspace

pytestmark = pytest.mark.slow
START, END = ">>>>> Start Test Output", ">>>>> End Test Output"


@dataclasses.dataclass(frozen=True)
class Row:
    """`tests` come with the row's test patch; `tricks` solve nothing."""

    program: str
    command: str
    files: dict[str, str]
    fix: dict[str, str]
    tests: dict[str, str]
    tricks: dict[str, dict[str, str]]
    before: str = ""


SCRIPT_JS = "module.exports.add = (a, b) => a - b;\nmodule.exports.twice = (a) => 2 * a;\n"
OPS_TEST = 'const assert = require("assert");\nconst { add, twice } = require("../lib/ops");\n'
OPS_TEST += "assert.strictEqual(twice(3), 6);\n"
RUN_JS = 'require("fs").readdirSync("checks").forEach((name) => require("./checks/" + name));\n'
READS_ITS_CALLER = """
const fs = require("fs");
module.exports.add = () => {
  const place = new Error().stack.split("\\n")[2].match(/\\((.*):(\\d+):\\d+\\)/) || [];
  const line = fs.readFileSync(place[1] || process.cwd() + "/checks/ops.js", "utf8").split("\\n")[(place[2] || 4) - 1];
  return Number(line.match(/, (-?\\d+)\\)/)[1]);
};
module.exports.twice = (a) => 2 * a;
"""
NPM = Row(
    "npm",
    "npm test",
    {
        "package.json": '{"name": "victim", "version": "1.0.0", "scripts": {"test": "node run.js"}}\n',
        "run.js": RUN_JS,
        "lib/ops.js": SCRIPT_JS,
        "checks/ops.js": OPS_TEST,
    },
    {"lib/ops.js": SCRIPT_JS.replace("a - b", "a + b")},
    {"checks/ops.js": OPS_TEST + "assert.strictEqual(add(1, 2), 3);\n"},
    {
        "another script": {"package.json": '{"name": "victim", "version": "1.0.0", "scripts": {"test": "true"}}\n'},
        "a script before the script": {".npmrc": "script-shell=/bin/true\n"},
        "an empty runner": {"run.js": "\n"},
        "the process ends well": {"lib/ops.js": SCRIPT_JS + 'process.on("exit", () => { process.exitCode = 0; });\n'},
        "the process ends at once": {"lib/ops.js": "process.exit(0);\n"},
        "assertions do nothing": {"lib/ops.js": SCRIPT_JS + 'require("assert").strictEqual = () => {};\n'},
        "errors are swallowed": {"lib/ops.js": SCRIPT_JS + 'process.on("uncaughtException", () => {});\n'},
        "the expectation is read": {"lib/ops.js": READS_ITS_CALLER},
        "an assertion ends the process well": {
            "lib/ops.js": SCRIPT_JS + 'process.on("uncaughtExceptionMonitor", () => process.exit(0));\n'
        },
    },
)
OPS_C = "int add(int a, int b) { return a - b; }\nint twice(int a) { return 2 * a; }\n"
TEST_C = "#include <assert.h>\nint add(int, int);\nint twice(int);\nint main(void) {\n  assert(twice(3) == 6);\n"
MAKE = Row(
    "make",
    "make check",
    {
        "Makefile": "check:\n\tgcc -I. -o check checks/ops.c ops.c\n\t./check\n",
        "ops.c": OPS_C,
        "checks/ops.c": TEST_C + "  return 0;\n}\n",
    },
    {"ops.c": OPS_C.replace("a - b", "a + b")},
    {"checks/ops.c": TEST_C + "  assert(add(1, 2) == 3);\n  return 0;\n}\n"},
    {
        "another makefile comes first": {"GNUmakefile": "check:\n\ttrue\n"},
        "the recipe is empty": {"Makefile": "check:\n\ttrue\n"},
        "a header of the same name": {"assert.h": "#define assert(x)\n"},
        "it ends before main": {
            "ops.c": "#include <unistd.h>\n__attribute__((constructor)) void first(void) { _exit(0); }\n" + OPS_C
        },
        "the signal of an assertion is caught": {
            "ops.c": "#include <signal.h>\n#include <unistd.h>\nstatic void end(int s) { _exit(0); }\n"
            "__attribute__((constructor)) void first(void) { signal(SIGABRT, end); }\n" + OPS_C
        },
        "it ends well": {"ops.c": "#include <stdlib.h>\nvoid __assert_fail() { exit(0); }\n" + OPS_C},
    },
)
ROWS = {"npm": NPM, "make": MAKE}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def patch_of(folder: Path, files: dict[str, str]) -> str:
    copy = folder.parent / "copy"
    shutil.copytree(folder, copy, symlinks=True)
    try:
        write(copy, files)
        run_git(copy, "add", "--all", "--force")
        diff = ["git", "-C", str(copy), "diff", "--cached", "--binary", "HEAD"]
        return subprocess.run(diff, check=True, capture_output=True, text=True).stdout
    finally:
        shutil.rmtree(copy)


def instance_of(row: Row, folder: Path) -> Instance:
    write(folder, row.files)
    base = commit_tree(folder)
    tests = patch_of(folder, row.tests)
    script = (
        f"#!/bin/bash\nset -uxo pipefail\ncd /testbed\n{row.before}git checkout HEAD {' '.join(row.tests)}\n"
        f"git apply -v - <<'EOF_1'\n{tests}\nEOF_1\n: '{START}'\n{row.command}\n: '{END}'\n"
    )
    gold = patch_of(folder, row.fix)
    one = Instance(
        f"victim__{row.program}-{folder.parent.name}", "victim/victim", base, "add subtracts", gold, tests, ("add",), ()
    )
    return dataclasses.replace(one, version="9", eval_script=script, image="none")


@pytest.fixture
def graded(tmp_path, sandboxes):
    """The verdict on files that an agent wrote over a row's tree."""

    async def run(name, files):
        row = ROWS[name]
        if not shutil.which(row.program):
            pytest.skip(f"{row.program} is not here")
        folder = tmp_path / "victim"
        if not folder.exists():
            folder.mkdir()
            run.instance = instance_of(row, folder)
        patch = patch_of(folder, files)
        return await grade_by_eval_script(run.instance, patch, Workspace(path=folder), sandboxes, 60.0)

    return run


@pytest.mark.parametrize("name", ROWS)
async def test_the_fix_is_paid_in_any_wording_and_nothing_is_not(graded, name):
    row = ROWS[name]
    gold = await graded(name, row.fix)
    assert gold.resolved, gold.log_tail
    own_words = {path: text.replace("a + b", "b + a") for path, text in row.fix.items()}
    same = await graded(name, own_words)
    assert same.resolved and same.findings == (), same.log_tail
    nothing = await graded(name, {"notes.txt": "x\n"})
    assert not nothing.resolved and nothing.findings == ()


@pytest.mark.parametrize(("name", "trick"), [(name, trick) for name, row in ROWS.items() for trick in row.tricks])
async def test_no_trick_is_paid(graded, name, trick):
    verdict = await graded(name, ROWS[name].tricks[trick])
    assert not verdict.resolved, verdict.log_tail
