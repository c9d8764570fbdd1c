"""Test files of other languages fail on right code once they are changed, and their calls stay what they were."""

import random
import re
import shutil
import subprocess

import pytest

from swe_rl.env.twins.siblings import poison_file

IN_PLACE = {
    "ops.test.js": "test('adds', () => {\n  expect(add(1, 2)).toBe(3);\n});\n",
    "ops.mjs": "assert.strictEqual(add(1, 2), 3);\nassert.notStrictEqual(add(1, 2), 4);\n",
    "words.spec.ts": 'it("joins", () => expect(join("a", "b")).toEqual("a-b"));\n',
    "script.cjs": "if (add(1, 2) !== 3) process.exit(1);\n",
    "ops_test.go": 'func TestAdd(t *testing.T) {\n\tif got := Add(1, 2); got != 3 {\n\t\tt.Error("x")\n\t}\n}\n',
    "ops.rs": "#[test]\nfn adds() {\n    assert_eq!(add(1, 2), 3);\n}\n",
    "ops.c": "int main(void) {\n  assert(add(1, 2) == 3);\n  return 0;\n}\n",
    "OpsTest.java": "  @Test void adds() { assertEquals(3, add(1, 2)); }\n",
    "ops_test.rb": "  def test_add\n    assert_equal 3, add(1, 2)\n  end\n",
    "ops.sh": '[ "$(./add 1 2)" = "3" ] || exit 1\n',
}
BY_ONE_MORE = {
    "ops.test.js": "test('adds', () => {\n  expect(add(1, 2)).toBe(three);\n});\n",
    "script.js": '#!/usr/bin/env node\nrequire("./checks");\n',
    "ops_test.go": "package ops\n\nfunc TestAdd(t *testing.T) {\n\tcheck(t, Add(1, 2))\n}\n",
    "ops.rs": "#[test]\nfn adds() {\n    check(add(1, 2));\n}\n",
    "ops.c": "int main(void) {\n  return check(add(1, 2));\n}\n",
    "OpsTest.java": "class OpsTest {\n  @Test public void adds() { check(add(1, 2)); }\n}\n",
    "ops_spec.rb": 'describe "ops" do\n  it "adds" do\n    check add(1, 2)\n  end\nend\n',
    "ops.sh": "#!/bin/bash\n./check\n",
}


@pytest.mark.parametrize("path", IN_PLACE)
@pytest.mark.parametrize("seed", range(3))
def test_the_expected_value_alone_is_another(path, seed):
    text = IN_PLACE[path]
    changed = poison_file(path, text, random.Random(seed))
    assert len(changed.split("\n")) == len(text.split("\n"))
    [(line, other)] = [pair for pair in zip(text.split("\n"), changed.split("\n"), strict=True) if pair[0] != pair[1]]
    call = re.search(r"add ?\(?1,? 2\)?|add 1 2|Add\(1, 2\)|join\(\"a\", \"b\"\)", line)
    assert call and call[0] in other, "the call stays"


@pytest.mark.parametrize("path", BY_ONE_MORE)
def test_a_file_without_a_written_expectation_gets_a_failing_test(path):
    text = BY_ONE_MORE[path]
    changed = poison_file(path, text, random.Random(0))
    assert changed != text and poison_file(path, text, random.Random(0)) == changed
    assert re.search(r"throw|Fatal|panic|return 1|raise|exit \d", changed)


@pytest.mark.parametrize(("path", "text"), [("ops.f90", "x"), ("ops_test.go", "package ops\n"), ("lib.c", "int x;\n")])
def test_what_nobody_knows_how_to_break_stays(path, text):
    assert poison_file(path, text, random.Random(0)) == ""


@pytest.mark.parametrize(
    ("path", "command"),
    [("script.cjs", "node script.cjs"), ("script.js", "node script.js"), ("ops.sh", "bash ops.sh")],
)
def test_changed_files_fail_where_they_would_pass(tmp_path, path, command):
    if not shutil.which(command.split()[0]):
        pytest.skip(command)
    right = {
        "script.cjs": "const add = (a, b) => a + b;\n" + IN_PLACE["script.cjs"],
        "script.js": "process.exitCode = 0;\nprocess.exit(0);\n".replace("process.exit(0);\n", ""),
        "ops.sh": "#!/bin/bash\ntrue\n",
    }[path]
    for text, status in ((right, 0), (poison_file(path, right, random.Random(1)), 1)):
        (tmp_path / path).write_text(text)
        done = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, timeout=60)
        assert bool(done.returncode) == bool(status), done.stderr


USE = """
>>> add(1, 2)
3
>>> words()
['a',
 'b']
>>> for number in (1, 2):
...     print(number)
1
2
>>> 1 / 0
Traceback (most recent call last):
    ...
ZeroDivisionError: division by zero
>>> anything()
...
>>> quiet = 1
"""


@pytest.mark.parametrize("seed", range(5))
def test_each_example_of_a_text_expects_something_else(seed):
    lines = USE.split("\n")
    changed = poison_file("docs/use.rst", USE, random.Random(seed)).split("\n")
    assert len(changed) == len(lines)
    different = [line for line, other in zip(lines, changed, strict=True) if line != other]
    assert different == ["3", " 'b']", "2", "ZeroDivisionError: division by zero"]


def test_an_example_ends_with_its_docstring():
    text = 'def one():\n    """Returns 1.\n\n    >>> one()\n    1\n    """\n    return 1\n'
    changed = poison_file("ops.py", text, random.Random(0))
    assert [line for line in changed.split("\n") if line not in text.split("\n")] == [changed.split("\n")[4]]


def test_a_text_without_examples_stays():
    assert poison_file("notes.md", "# Notes\n\nNothing to run.\n", random.Random(0)) == ""
