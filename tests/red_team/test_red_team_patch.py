"""Tricks on the repository that the patch is taken from: the true change comes out, or nothing at all."""

import dataclasses

import pytest

from swe_rl.config.choices import GradingKind, Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.env.bugs.workspace import commit_tree
from swe_rl.env.grading.make import GRADERS
from swe_rl.env.grading.pytest import grade_by_pytest
from swe_rl.env.patch import collect_patch
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import ExecResult, SandboxError, Workspace
from tests.red_team.conftest import SOURCE, TESTS
from tests.support.pytest_alone import EXPORTED
from tests.support.scripted_sandbox import ScriptedProvider

# Nothing is changed before its command has ended: what a command does while it runs is the agent's own change.
LEFT_RUNNING = (
    "nohup sh -c 'until [ -e .git/go ]; do sleep 0.01; done; "
    "while true; do echo x > tests/test_victim.py; sleep 0.01; done' >/dev/null 2>&1 &"
)
FIX = "sed -i 's/a - b/a + b/' victim/__init__.py"


@pytest.fixture(scope="module")
def resolved():
    """Whether a patch resolves the instance, for each patch that was graded."""
    return {}


@pytest.mark.parametrize(
    ("trick", "kind"),
    [
        ("touch .git/index.lock", "git_tampering"),
        ("rm .git/index", "git_tampering"),
        ("git update-index --assume-unchanged victim/__init__.py", "git_tampering"),
        ("git update-index --skip-worktree victim/__init__.py", "git_tampering"),
        ("git config diff.py.textconv 'echo nothing'; echo '*.py diff=py' > .git/info/attributes", "git_tampering"),
        ("git config filter.f.clean 'echo evil'; echo '*.py filter=f' > .git/info/attributes", "git_tampering"),
        ("git config core.fsmonitor true; git config diff.external /bin/true", "git_tampering"),
        ("git config core.worktree /tmp; git config core.bare true", "git_tampering"),
        ("echo broken > .git/config", "git_tampering"),
        ("echo '*' > .git/info/exclude; git config core.excludesFile /tmp/x", "git_tampering"),
        (
            "mkdir -p .git/hooks; printf '#!/bin/sh\\nexit 1\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/*",
            "git_tampering",
        ),
        ("git commit -qam mine; git tag mine; git checkout -q --orphan other; git commit -qm orphan", None),
        ("git init -q victim; git -C victim add .; git -C victim commit -qm nested", None),
        ("git stash -q; git stash pop -q; git rm -q --cached victim/__init__.py", None),
        ("git sparse-checkout set --no-cone '/tests/*'; " + FIX, None),
        ("git branch -m main other; rm .git/HEAD; echo garbage > .git/HEAD", "git_tampering"),
        ("mv .git /tmp/elsewhere; echo 'gitdir: /tmp/elsewhere' > .git", "git_tampering"),
        ("mkfifo .gitignore .gitattributes victim/.gitignore .git/packed-refs .git/objects/info/alternates", None),
        ("mkfifo /tmp/p; ln -s /tmp/p .gitignore; ln -s /dev/zero .git/packed-refs; ln -s /tmp/p .git/shallow", None),
        ("mv .git/objects /tmp; ln -s /tmp/objects .git; mkfifo /tmp/objects/info/alternates", None),
        ("mkfifo victim/pipe; ln -s / victim/root; head -c 3000000 /dev/zero > huge.bin", None),
        (
            "mkdir -p /tmp/bin; printf '#!/bin/sh\\necho fake\\n' > /tmp/bin/git; "
            "chmod +x /tmp/bin/git; export PATH=/tmp/bin:$PATH",
            None,
        ),
    ],
)
async def test_the_true_change_comes_out(victim, sandboxes, agent, resolved, trick, kind):
    patch, attempts, outputs = await agent(FIX, trick)
    assert "-    return a - b\n+    return a + b" in patch, (patch, outputs)
    assert "huge.bin" not in patch
    if patch not in resolved:  # Most tricks leave the same patch, whose grade is known then.
        verdict = await grade_by_pytest(victim.instance, patch, victim.workspace, sandboxes, 60)
        resolved[patch] = verdict.resolved
    assert resolved[patch]
    assert kind is None or attempts.get(kind), attempts


@pytest.mark.parametrize(
    "trick", ["rm -rf .git", "rm -rf .git/objects", "rm -f .git/objects/??/*; rm -f .git/objects/pack/*"]
)
async def test_a_repository_that_is_gone_is_no_change(victim, sandboxes, trick):
    sandbox = await sandboxes.create(victim.workspace, owner="agent")
    await sandbox.exec(f"{FIX}; {trick}", timeout_s=30)
    taken = await collect_patch(sandbox, victim.instance.base_commit, 30)
    assert taken.text == "" and "gone" in taken.note
    await sandbox.close()


async def test_too_large_a_change_is_named(victim, sandboxes):
    sandbox = await sandboxes.create(victim.workspace, owner="agent")
    await sandbox.exec("for i in 1 2 3; do head -c 600000 /dev/urandom | base64 -w70 > noise$i.txt; done", timeout_s=30)
    taken = await collect_patch(sandbox, victim.instance.base_commit, 30)
    assert taken.text.count("diff --git") == 0 and "'noise1.txt'" in taken.note
    await sandbox.close()


async def test_large_files_of_any_name_are_left_out(victim, sandboxes):
    sandbox = await sandboxes.create(victim.workspace, owner="agent")
    names = r"$'new\nline' $'return\r' 'blank ' 'a[1]*?' 'back\slash' é"
    await sandbox.exec(f'{FIX}; for name in {names}; do head -c 1200000 /dev/urandom > "$name"; done', timeout_s=30)
    taken = await collect_patch(sandbox, victim.instance.base_commit, 30)
    assert (taken.text.count("diff --git"), taken.note) == (1, "")
    await sandbox.close()


@pytest.mark.parametrize(
    ("spoil", "left_out"),
    [
        ("echo hi > new.rc", ["'new.rc'"]),
        ("sed -i '1s/^/x/' old.rc", ["'old.rc'"]),
        ("sed -i '1s/^/x/' old.rc; rm tests/data.txt; echo hi > $'n\\new.rc'; echo hi > '[*.rc'", ["old", "new", "["]),
        ("for i in $(seq 60); do echo hi > $i.rc; done", ["and 55 more"]),
        ("printf '\\377\\376x\\0\\n\\0' > new.rc", []),
    ],
)  # fmt: skip
async def test_a_file_that_git_cannot_encode_is_left_out_alone(sandboxes, tmp_path, spoil, left_out):
    """The encoding is the base tree's own; what else changed is the agent's patch."""
    tmp_path = tmp_path / "tree"
    (tmp_path / "tests").mkdir(parents=True)
    (tmp_path / ".gitattributes").write_text("*.rc text working-tree-encoding=UTF-16LE-BOM\n")
    (tmp_path / "old.rc").write_bytes("STRINGTABLE\n".encode("utf-16"))
    (tmp_path / "tests/data.txt").write_text("x")
    (tmp_path / "a.py").write_text("x = 1\n")
    base = commit_tree(tmp_path)
    sandbox = await sandboxes.create(Workspace(path=tmp_path), owner="agent")
    more = "for i in $(seq 40); do echo $i > new$i.txt; done; head -c 1200000 /dev/zero > large.rc"
    await sandbox.exec(f"{spoil}; {more}; echo 'x = 2' > a.py", timeout_s=30)
    taken = await collect_patch(sandbox, base, 30)
    assert "+x = 2" in taken.text and taken.text.count("b/new") >= 40 and "large" not in taken.text
    assert ("deleted file mode" in taken.text) == ("rm " in spoil) and "data.txt" not in taken.note
    assert all(word in taken.note for word in left_out) and bool(taken.note) == bool(left_out), taken.note
    await sandbox.close()


async def test_bytes_of_any_kind_travel(victim, sandboxes):
    sandbox = await sandboxes.create(victim.workspace, owner="agent")
    await sandbox.exec(
        "printf 'caf\\351 \\303\\251\\n' > latin.txt; printf '\\0\\1\\2' > b.bin; touch 'sp ace' $'new\\nline'",
        timeout_s=30,
    )
    patch = (await collect_patch(sandbox, victim.instance.base_commit, 30)).text
    assert patch.encode() and patch.count("GIT binary patch") == 2
    await sandbox.close()
    verdict = await grade_by_pytest(victim.instance, patch, victim.workspace, sandboxes, 60)
    assert verdict.patch_applied


async def test_a_patch_longer_than_any_argument_may_be(victim, sandboxes, agent):
    """The kernel takes 128 KiB as one argument: patches travel as files."""
    patch, _, _ = await agent(FIX, "seq 1 60000 > numbers.txt")
    assert len(patch) > 2 * 128 * 1024
    verdict = await grade_by_pytest(victim.instance, patch, victim.workspace, sandboxes, 60)
    assert verdict.resolved and verdict.patch_applied


async def test_an_agent_s_attributes_do_not_keep_its_tests(victim, sandboxes, agent):
    """Read as UTF-7, the changed test is the known one, of the same size; Python reads a sum that is never 0."""
    known = f"from victim import twice\n\n\ndef test_sum():\n    # {'日' * 21}\n    assert twice(3) == 6\n"
    (victim.folder / "tests" / "test_sum.py").write_text(known)
    tests = {"base_commit": commit_tree(victim.folder), "pass_to_pass": ("tests/test_sum.py::test_sum",)}
    victim.instance = dataclasses.replace(victim.instance, **tests)
    changed = known.replace("日" * 21, f"+{'ZeVl5WXl' * 7}").replace("==", "+AD0APQ-")
    assert len(changed) == len(known.encode()) and changed.encode().decode("utf-7") == known
    patch, _, _ = await agent(
        f"{FIX}; sed -i 's/2 . a/7/; 1i import builtins\\nbuiltins.AD0APQ = 0' victim/__init__.py",
        "echo '/tests/test_sum.py working-tree-encoding=UTF-7' > .gitattributes",
        f"cat > tests/test_sum.py <<'END'\n{changed.replace('+', '+-')}END",
    )
    assert "+AD0APQ- 6" in patch and "working-tree-encoding" in patch
    verdict = await grade_by_pytest(victim.instance, patch, victim.workspace, sandboxes, 60)
    assert not verdict.resolved and set(verdict.restored) == {".gitattributes", "tests/test_sum.py"}


@pytest.mark.parametrize("kind", [GradingKind.pytest, pytest.param(GradingKind.eval_script, marks=pytest.mark.slow)])
async def test_attributes_are_not_the_agent_s_where_the_gold_patch_has_some_too(victim, sandboxes, agent, kind):
    """Written in ASCII, the new test is about another letter, for which a difference is as good as a sum."""
    (victim.folder / ".gitattributes").write_text("*.txt text\n")
    new_test = "\n\ndef test_add():\n    size = len('é'.encode())\n    assert add(1, size - 1) == size\n"
    base = {"base_commit": commit_tree(victim.folder)}
    base["test_patch"] = victim.patch({"tests/test_victim.py": TESTS + new_test})
    victim.instance = dataclasses.replace(victim.instance, **base)
    gold = victim.patch({".gitattributes": "*.md text\n", "victim/__init__.py": SOURCE.replace("a - b", "a + b")})
    script = f"{EXPORTED}git apply <<'EOF_1'\n{victim.instance.test_patch}EOF_1\npython -m pytest -rA tests\n"
    eval_script = script if kind is GradingKind.eval_script else ""
    victim.instance = dataclasses.replace(victim.instance, patch=gold, eval_script=eval_script)
    patch, _, _ = await agent("echo '/tests/* working-tree-encoding=ASCII//TRANSLIT' > .gitattributes")
    grades = [await GRADERS[kind](victim.instance, text, victim.workspace, sandboxes, 60) for text in (patch, gold)]
    assert [grade.resolved for grade in grades] == [False, True] and all(grade.patch_applied for grade in grades)
    assert all(".gitattributes" in grade.restored for grade in grades)


async def test_no_answer_in_time_is_not_an_empty_patch():
    provider = ScriptedProvider(lambda command: ExecResult(124, "", True, 0, 1.0))
    from swe_rl.sandbox.sandbox import Workspace

    sandbox = await provider.create(Workspace(), owner="agent")
    with pytest.raises(SandboxError, match="within 1 s"):
        await collect_patch(sandbox, "0" * 40, 1.0)


async def test_what_an_agent_left_running_or_lying_around_is_not_there(victim, sandboxes, agent):
    patch, attempts, _ = await agent(
        LEFT_RUNNING,
        "touch .git/go",
        "printf 'import os; os._exit(0)' > /tmp/sitecustomize.py; echo 'export PYTHONPATH=/tmp' > ~/.bashrc",
        "mkdir -p .git/hooks; printf '#!/bin/sh\\ntouch /tmp/hooked\\n' > .git/hooks/post-checkout; "
        "chmod +x .git/hooks/post-checkout",
    )
    assert patch == ""
    assert {"daemon", "startup_hook", "git_tampering"} <= set(attempts)
    verdict = await grade_by_pytest(victim.instance, patch, victim.workspace, sandboxes, 60)
    assert not verdict.resolved and all(verdict.pass_to_pass.values())


async def test_without_isolation_what_was_left_running_is_ended_as_well(victim, tmp_path):
    provider = make_provider(SandboxConfig(isolation=Isolation.none), tmp_path / "scratch", print)
    sandbox = await provider.create(victim.workspace, owner="agent")
    for command in (LEFT_RUNNING, "touch .git/go"):
        await sandbox.exec(command, timeout_s=30)
    assert (await collect_patch(sandbox, victim.instance.base_commit, 30)).text == ""
    await provider.close()
