"""Each data set's own columns become instances; the tree that its scripts make is the one that they promise."""

import json
import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.dataset.instance import InstanceError
from swe_rl.env.swe import r2e_gym, swe_smith
from swe_rl.env.swe.read import to_instance
from swe_rl.env.swe.reverse import reverse_patch

SWEBENCH = {
    "repo": "Django/django",
    "instance_id": "Django__django-11066",
    "base_commit": "4b45b6c8e4d7c9701a332e80d3b1c84209dc36e2",
    "patch": "diff --git a/a b/a\n",
    "test_patch": "diff --git a/t b/t\n",
    "problem_statement": "It fails.",
    "hints_text": "",
    "created_at": "2019-03-09T13:03:14Z",
    "version": "3.0",
    "FAIL_TO_PASS": '["test_x (a.B)"]',
    "PASS_TO_PASS": "[]",
    "environment_setup_commit": "419a78300f7cd27611196e1e464d50fd0385ff27",
    "difficulty": "<15 min fix",
}
R2E = {
    "repo_name": "orange3",
    "docker_image": "namanjain12/orange3_final:2d9617bd0cb1f0ba61771258410ab8fae8e7e24d",
    "commit_hash": "2d9617bd0cb1f0ba61771258410ab8fae8e7e24d",
    "parsed_commit_content": json.dumps(
        {
            "file_diffs": [
                {
                    "header": {"file": {"path": path}, "misc_line": None},
                    "index_line": {"old_commit_hash": "aaa", "new_commit_hash": "bbb", "mode": "100644"},
                    "is_binary_file": False,
                    "minus_file": {"path": f"a/{path}"},
                    "plus_file": {"path": f"b/{path}"},
                    "hunks": [
                        {
                            "descriptor": {
                                "old_range": {"start": 1, "length": 2},
                                "new_range": {"start": 1, "length": 2},
                                "section": "",
                            },
                            "line_group": {
                                "all_lines": [
                                    {"content": "one", "type": "context"},
                                    {"content": "bad", "type": "deleted"},
                                    {"content": "good", "type": "added"},
                                ]
                            },
                        }
                    ],
                }
                for path in ("src/app.py", "tests/test_app.py", "src/testing/kit.py")
            ],
            "old_commit_hash": "2d9617bd0cb1f0ba61771258410ab8fae8e7e24d^",
        }
    ),
    "execution_result_content": json.dumps(
        {
            "old_commit_res": {
                "stdout": "== short test summary info ==\nPASSED r2e_tests/test_1.py::A::test_old\n"
                "FAILED r2e_tests/test_1.py::A::test_new - assert 1\n"
            }
        }
    ),
    "relevant_files": ["src/testing/kit.py"],
    "prompt": "p",
    "problem_statement": "x [ISSUE]\n**Bad**\n[/ISSUE]",
    "expected_output_json": json.dumps(
        {"A.test_old": "PASSED", "A.test_new": "PASSED", "\u001b[1mA.other\u001b[0m": "FAILED"}
    ),
}


def git(folder, *arguments):
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture
def repository(tmp_path):
    """Two commits, an ignored file that is tracked all the same, and one that is not tracked."""
    folder = tmp_path / "testbed"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text("*.cfg\n.venv\n")
    (folder / "kept.cfg").write_text("x\n")
    (folder / "app.py").write_text("one\ntwo\nthree\n")
    git(folder, "add", "-f", ".")
    git(folder, "commit", "-qm", "first")
    (folder / "app.py").write_text("one\n2\nthree\n")
    git(folder, "commit", "-qam", "second: the fix")
    (folder / ".venv").mkdir()
    (folder / ".venv" / "python").write_text("")
    return folder


def run(script, folder, tmp_path):
    """A data set's script, with its places moved below `tmp_path`."""
    places = {"/testbed": folder, "/r2e_tests": tmp_path / "r2e_tests", "/var/lib/r2e_gym": tmp_path / "kept"}
    places["/tmp/"] = f"{tmp_path}/"
    script = re.sub(
        r"(?<![\w/])(/testbed|/r2e_tests|/var/lib/r2e_gym|/tmp/)", lambda match: str(places[match[1]]), script
    )
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_swebench_rows_take_the_template_or_their_own_image():
    one = to_instance(SWEBENCH, "here", "r.io/x/sweb.eval.x86_64.{instance_id_1776}:latest")
    assert one.image == "r.io/x/sweb.eval.x86_64.django_1776_django-11066:latest"
    assert (one.version, one.difficulty, one.fail_to_pass) == ("3.0", "<15 min fix", ("test_x (a.B)",))
    assert to_instance(SWEBENCH, "here", "r.io/{instance_id_s}").image == "r.io/django_s_django-11066"
    for column in ("image", "image_name", "docker_image"):
        assert to_instance(SWEBENCH | {column: "own:1"}, "here", "r.io/{instance_id}").image == "own:1"
    assert to_instance(SWEBENCH, "here").image == ""


def test_a_trainers_row_keeps_the_record_inside():
    row = {"data_source": "swe-gym", "prompt": [{"role": "user", "content": "x"}], "instance": SWEBENCH}
    assert to_instance(row, "here") == to_instance(SWEBENCH, "here")


def test_r2e_gym():
    one = to_instance(R2E, "here")
    assert one.instance_id == "orange3__2d9617bd0c" and one.image == R2E["docker_image"]
    assert one.problem_statement == "**Bad**"
    assert (one.fail_to_pass, one.pass_to_pass) == (("A.test_new",), ("A.test_old",))
    assert one.patch.count("diff --git") == 2 and "src/testing/kit.py" in one.patch
    assert one.test_patch.startswith("diff --git a/tests/test_app.py b/tests/test_app.py\nindex aaa..bbb 100644\n")
    assert "@@ -1,2 +1,2 @@\n one\n-bad\n+good\n" in one.patch


def test_r2e_gym_without_an_old_log_has_new_tests_only():
    one = to_instance(R2E | {"execution_result_content": "{}"}, "here")
    assert set(one.fail_to_pass) == {"A.test_old", "A.test_new"} and not one.pass_to_pass


@pytest.mark.parametrize(
    ("change", "words"),
    [({"expected_output_json": "["}, "'expected_output_json' is not JSON"), ({"commit_hash": ""}, "'commit_hash'")],
)
def test_r2e_gym_names_the_column(change, words):
    with pytest.raises(InstanceError, match=f"there, row 3: column {words}"):
        to_instance(R2E | change, "there, row 3")


def test_r2e_gym_hides_tests_from_the_agent_and_keeps_them_for_the_grader(repository, tmp_path):
    one = to_instance(R2E, "here")
    (repository / "run_tests.sh").write_text("echo tests\n")
    (tmp_path / "r2e_tests").mkdir()
    (tmp_path / "r2e_tests" / "test_1.py").write_text("")
    (repository / "r2e_tests").symlink_to(tmp_path / "r2e_tests")
    run(one.setup_script, repository, tmp_path)
    assert not (repository / "run_tests.sh").exists() and not (repository / "r2e_tests").exists()
    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "ls-files").split() == [".gitignore", "app.py", "kept.cfg"]
    assert git(repository, "rev-list", "--all", "--count").strip() == "1"
    (repository / "app.py").write_text("changed\n")
    assert "+changed" in git(repository, "diff", one.base_commit)
    script = one.eval_script.replace("bash run_tests.sh", "bash run_tests.sh > ran; ls r2e_tests >> ran")
    run(script, repository, tmp_path)
    assert (repository / "ran").read_text() == "tests\ntest_1.py\n"
    run(one.hide_script, repository, tmp_path)
    assert not (tmp_path / "kept").exists()


def test_r2e_gym_reads_the_last_summary_and_believes_every_failure():
    log = (
        "PASSED in the output\n=== short test summary info ===\nFAILED r2e_tests/test_1.py::A::test_old - old\n"
        "FAILED r2e_tests/test_1.py::test_z - old\nPASSED r2e_tests/test_1.py::test_w\n"
        "\x1b[36m=== short test summary info ===\x1b[0m\n"
        "\x1b[32mPASSED\x1b[0m r2e_tests/test_1.py::\x1b[1mA::test_x\x1b[0m\n"
        "ERROR r2e_tests/test_2.py - boom\nFAILED r2e_tests/test_1.py::test_y[1] - assert\n"
        "PASSED r2e_tests/test_1.py::test_z\n== 1 failed ==\n"
    )
    failed = dict.fromkeys(("A.test_old", "test_y[1]", "test_z"), "FAILED")
    assert r2e_gym.parse_log(log) == {"A.test_x": "PASSED", **failed}
    assert r2e_gym.parse_log("PASSED r2e_tests/test_1.py::test_x") == {}


SMITH = {
    "instance_id": "a__b.0123abcd.func_basic__x1",
    "repo": "swesmith/a__b.0123abcd",
    "image_name": "swesmith.x86_64.a__b.0123abcd",
    "patch": "diff --git a/app.py b/app.py\nindex 1..2 100644\n--- a/app.py\n+++ b/app.py\n"
    "@@ -1,3 +1,3 @@\n one\n-2\n+22\n three\n",
    "FAIL_TO_PASS": ["tests/test_a.py::test_x"],
    "PASS_TO_PASS": ["tests/test_b.py::T::test_y"],
    "problem_statement": "It counts wrong.",
}


def test_swe_smith(repository, tmp_path):
    one = to_instance(SMITH, "here")
    assert one.image == "jyangballin/swesmith.x86_64.a_1776_b.0123abcd"
    assert to_instance(SMITH | {"image_name": "you/swesmith.x86_64.a_1776_b.0:x"}, "here").image.startswith("you/")
    assert "'tests/test_a.py' 'tests/test_b.py'" in one.eval_script
    run(one.setup_script, repository, tmp_path)
    assert (repository / "app.py").read_text() == "one\n22\nthree\n"
    assert git(repository, "rev-list", "--all", "--count").strip() == "1"
    assert git(repository, "ls-files").split() == [".gitignore", "app.py", "kept.cfg"]
    (tmp_path / "fix.diff").write_text(one.patch)
    git(repository, "apply", str(tmp_path / "fix.diff"))
    assert (repository / "app.py").read_text() == "one\n2\nthree\n"
    assert git(repository, "diff", one.base_commit).endswith("-22\n+2\n three\n")


def test_swe_smith_names_the_column():
    with pytest.raises(InstanceError, match="column 'problem_statement' is missing or empty"):
        to_instance(SMITH | {"problem_statement": " "}, "here")
    with pytest.raises(InstanceError, match="binary parts"):
        to_instance(SMITH | {"patch": SMITH["patch"] + "GIT binary patch\n"}, "here")


TEXT = st.lists(st.sampled_from(["a", "b", "", "-- x", "++ y"]), max_size=6).map("\n".join)


@given(TEXT, TEXT, st.booleans())
def test_a_reversed_patch_undoes_the_patch(tmp_path_factory, before, after, new):
    """Also where lines end without a newline, and where the file is new."""
    folder = tmp_path_factory.mktemp("reverse")
    git(folder, "init", "-q")
    if not new:
        (folder / "f.py").write_text(before)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "before", "--allow-empty")
    (folder / "f.py").write_text(after)
    git(folder, "add", "-A")
    patch = git(folder, "diff", "--cached")
    if not patch:
        return
    turned = reverse_patch(patch, "here")
    (folder.parent / "turned.diff").write_text(turned)
    git(folder, "apply", str(folder.parent / "turned.diff"))
    assert (not (folder / "f.py").exists()) if new else ((folder / "f.py").read_text() == before)
    assert reverse_patch(turned, "here") == patch
    assert swe_smith.is_row({"repo": "swesmith/x"})
