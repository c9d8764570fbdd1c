"""A patch into repositories of every kind: what is protected is put back, and the repository stays as it was."""

import shlex

import pytest

from swe_rl.config.schema import SandboxConfig
from swe_rl.env.bugs.workspace import commit_tree
from swe_rl.env.folder import patch_between
from swe_rl.env.grading.apply import apply_patch, files_to_apply
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import Workspace, put_files

FILES = {"code.py": "1\n", "tests/test_code.py": "2\n", "tests/[x] \u00e4.txt": "3\r\n", "readme": "4\n"}
IMAGES = "2\n# of the image, in no commit\n"
AGENTS = {"code.py": "10\n", "tests/test_code.py": "20\n", "tests/new.py": "30\n", "readme": "4\n"}  # one test removed
REPOSITORIES = {
    "loose": ":",
    "packed": "git gc -q && rm -rf .git/objects/??",
    "sha256": "rm -rf .git && git init -q --object-format=sha256 && git add -A && git commit -qm first",
    "git_elsewhere": "mv .git /tmp/elsewhere && echo 'gitdir: /tmp/elsewhere' > .git",
    "objects_elsewhere": "mv .git/objects '/tmp/a: b' && ln -s '/tmp/a: b' .git/objects",
    "borrowed_objects": "mv .git/objects /tmp/objects && mkdir -p .git/objects/info && "
    "echo /tmp/objects > .git/objects/info/alternates",
    "worktree": "git clone -q --bare . /tmp/bare && rm -rf .git && "
    "git -C /tmp/bare worktree add -q --no-checkout /tmp/tree && mv /tmp/tree/.git . && "
    "git -C /tmp/bare worktree repair $PWD >/dev/null 2>&1 && git reset -q",
    "submodule": "git init -q /tmp/other && git -C /tmp/other commit -qm first --allow-empty && "
    "git -c protocol.file.allow=always submodule --quiet add /tmp/other other && git commit -qm second",
    "objects_of_another_user": "chmod -R a-w .git/objects",
}


@pytest.fixture
async def sandbox(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    commit_tree(tmp_path / "tree")
    provider = make_provider(SandboxConfig(), tmp_path / "scratch", print)
    yield await provider.create(Workspace(path=tmp_path / "tree"), owner="grader")
    await provider.close()


@pytest.mark.parametrize("kind", REPOSITORIES)
async def test_repositories_of_every_kind(sandbox, kind):
    objects = "find $(git rev-parse --git-path objects)/ -type f ! -name alternates | sort; git status --short"
    prepare = f"{REPOSITORIES[kind]} && printf %s {shlex.quote(IMAGES)} > tests/test_code.py && {objects}"
    before = await sandbox.exec(prepare, timeout_s=30)
    assert before.exit_code == 0 and before.output.endswith(" M tests/test_code.py\n"), before.output
    patch = patch_between(FILES | {"tests/test_code.py": IMAGES}, AGENTS)
    folder = await put_files(sandbox, files_to_apply(patch, [":(top,glob)tests/**"]))
    applied = await apply_patch(sandbox, folder, 30)
    assert applied.ok and set(applied.restored) == {"tests/test_code.py", "tests/[x] \u00e4.txt", "tests/new.py"}
    for name, text in {**FILES, "code.py": "10\n", "tests/test_code.py": IMAGES}.items():
        assert await sandbox.read_file(name) == text.encode()
    after = await sandbox.exec(objects, timeout_s=30)
    assert after.output == before.output.replace(" M tests", " M code.py\n M tests")
