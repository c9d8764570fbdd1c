"""The patch of a working tree, put to a fresh copy of the base commit: the copy becomes what the agent left."""

import base64
import subprocess
from pathlib import Path

import pytest

from swe_rl.config.schema import SandboxConfig
from swe_rl.env.grading.apply import apply_patch, files_to_apply
from swe_rl.env.patch import MAX_PATCH_BYTES, TakenPatch, collect_patch, submitted_patch
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import Workspace, put_files

NOTHING_PROTECTED = [".no_such_file"]
FIX = "sed -i 's/a - b/a + b/' calc.py"
LATIN = r"printf 'caf\351 2\n' > latin.txt"


@pytest.fixture
async def sandboxes(tmp_path):
    provider = make_provider(SandboxConfig(), tmp_path / "scratch", print)
    yield provider
    await provider.close()


@pytest.fixture(scope="module")
def make_tree(tmp_path_factory):
    """Makes a tree, or returns the one that is equal: sandboxes work in copies of it, so that tests may share it."""
    made = {}

    def make(files, attributes="", *, checked_out=True):
        key = (tuple(files.items()), attributes, checked_out)
        if key not in made:
            folder = tmp_path_factory.mktemp("trees") / "tree"
            made[key] = Tree(folder, files, attributes, checked_out=checked_out)
        return made[key]

    return make


class Tree:
    """A repository with one commit; `files` are written as bytes, and no attribute changes them on their way in.

    Where it is not `checked_out`, the attributes came when the files were there: they are as they were before.
    """

    def __init__(
        self, folder: Path, files: dict[str, bytes], attributes: str = "", *, checked_out: bool = True
    ) -> None:
        folder.mkdir()
        self.workspace = Workspace(path=folder)
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        git = "git -c user.name=a -c user.email=a@b"
        script = f"git init -q .; git add --all -f; {git} commit -qm first"
        if attributes:  # of a later commit, as in the repositories that forgot to normalise their files
            script += f"; echo '{attributes}' > .gitattributes; git add .gitattributes; {git} commit -qm second"
            script += "; git ls-files -z | xargs -0 rm; git checkout -q -f -- ." if checked_out else ""
        subprocess.run(["bash", "-ec", script], cwd=folder, check=True)
        asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
        self.base_commit = asked.stdout.strip()

    async def change(self, sandboxes, command: str) -> tuple[TakenPatch, str]:
        """The patch of what `command` does, and the state of the tree behind it."""
        sandbox = await sandboxes.create(self.workspace, owner="agent")
        await sandbox.exec(command, timeout_s=30)
        state = await state_of(sandbox)
        taken = await collect_patch(sandbox, self.base_commit, 60)
        await sandbox.close()
        return taken, state

    async def with_patch(self, sandboxes, patch: str) -> str:
        """The state of a fresh tree with the patch."""
        sandbox = await sandboxes.create(self.workspace, owner="grader")
        files = files_to_apply(patch, NOTHING_PROTECTED)
        applied = await apply_patch(sandbox, await put_files(sandbox, files), 60)
        assert applied.ok, applied.output
        state = await state_of(sandbox)
        await sandbox.close()
        return state


async def state_of(sandbox) -> str:
    hashed = "find . -path ./.git -prune -o -type f ! -name '*.orig' -print0 | sort -z | xargs -0 sha1sum"
    return (await sandbox.exec(hashed, timeout_s=30)).output


async def test_what_tools_leave_behind_in_the_place_of_a_file_is_no_change(sandboxes, make_tree):
    tree = make_tree({"other.py": b"x = 1\n"})
    taken, _ = await tree.change(sandboxes, "rm other.py; mkdir -p other.py/__pycache__; echo > other.py/__pycache__/m")
    assert taken.text.count("diff --git") == 1 and "deleted file" in taken.text, taken.text


RULES = {"text": "text", "lf": "eol=lf", "auto": "text=auto eol=lf", "crlf": "eol=crlf", "raw": "-text"}
CONTENTS = {
    "crlf.txt": b"a\r\nb\r\n",
    "mixed.txt": b"a\r\nb\nc\r\n",
    "lf.txt": b"a\nb\n",
    "latin.txt": b"a\xe9\r\nb\r\n",
}


@pytest.mark.parametrize(
    ("command", "changed"),
    [
        ("true", 0),
        ("echo 'x = 2' > other.py", 1),
        ("sed -i 's/b/b2/' */crlf.txt */lf.txt */latin.txt", 3 * len(RULES)),
        ("rm */mixed.txt; for f in */crlf.txt; do printf 'z\\r\\n' >> $f; done", 2 * len(RULES)),
    ],
)
async def test_line_ends_are_those_that_the_agent_left(sandboxes, make_tree, command, changed):
    files = {f"{folder}/{name}": content for folder in RULES for name, content in CONTENTS.items()}
    rules = "\n".join(f"{folder}/*.txt {rule}" for folder, rule in RULES.items())
    tree = make_tree(files | {"other.py": b"x = 1\n"}, rules)
    taken, state = await tree.change(sandboxes, command)
    assert taken.text.count("diff --git") == changed, taken.text
    assert await tree.with_patch(sandboxes, taken.text) == state


@pytest.mark.parametrize("checked_out", [True, False])
@pytest.mark.parametrize(
    "command",
    [
        "sed -i 's/b/b2/' *.txt",
        "printf 'a\\nz\\r\\nb\\n' > lf.txt",
        "printf 'a\\nz\\r\\nb\\n' > crlf.txt",
        "printf 'a\\r\\nz\\r\\nb\\r\\n' > lf.txt",
        "printf 'a\\nz\\nb\\n' > crlf.txt",
        "printf 'a\\nz\\nb\\n' > lf.txt",
        "printf 'a\\r\\nb\\n' > new.txt",
        "printf 'a\\r\\nb\\r\\n' > new.txt",
        "printf 'a\\nb\\n' > new.txt",
    ],
)
async def test_line_ends_below_an_attribute_that_a_checkout_heeds(sandboxes, make_tree, command, checked_out):
    files = {"lf.txt": b"a\nb\n", "crlf.txt": b"a\r\nb\r\n"}
    tree = make_tree(files, "*.txt text eol=crlf", checked_out=checked_out)
    taken, state = await tree.change(sandboxes, command)
    assert await tree.with_patch(sandboxes, taken.text) == state


OTHERS = {"lf.txt": b"a\nb\n", "other.txt": b"c\nd\n", "crlf.txt": b"a\r\nb\r\n", "sub/lf.txt": b"e\nf\n"}


@pytest.mark.parametrize(
    "command",
    [
        "rm .gitattributes",
        "rm .gitattributes; printf 'a\\r\\nz\\r\\n' > lf.txt",
        "rm .gitattributes; printf 'a\\nz\\n' > lf.txt; rm other.txt",
        "echo '*.txt -text' > .gitattributes; sed -i 's/b/b2/' *.txt",
        "echo '*.txt text' > .gitattributes; printf 'new\\n' > new.txt",
        "echo '*.md eol=crlf' >> .gitattributes; printf 'new\\n' > new.md; printf 'n\\r\\nm\\n' > more.md",
        "echo '*.txt text' > sub/.gitattributes; sed -i 's/e/e2/' sub/lf.txt",
    ],
)
async def test_changed_attributes_change_no_other_bytes(sandboxes, make_tree, command):
    tree = make_tree(OTHERS, "*.txt text eol=crlf")
    taken, state = await tree.change(sandboxes, command)
    assert ".gitattributes" in taken.text
    assert await tree.with_patch(sandboxes, taken.text) == state


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("printf 'c\\r\\nd\\n' > other.txt", ["other.txt"]),
        ("printf 'e\\nf\\r\\n' > sub/lf.txt; touch lf.txt", ["sub/lf.txt"]),
        ("sed -i 's/\\r$//' crlf.txt", ["crlf.txt"]),
        ("touch *.txt", []),
    ],
)
async def test_line_ends_alone_are_a_change(sandboxes, make_tree, command, names):
    tree = make_tree({**OTHERS, "still.txt": b"x\n"}, "*.txt text eol=crlf")
    taken, state = await tree.change(sandboxes, command)
    assert [line.split(" b/")[1] for line in taken.text.split("\n") if line.startswith("diff --git")] == names
    assert await tree.with_patch(sandboxes, taken.text) == state


async def test_a_file_that_becomes_what_the_commit_holds_is_no_change_for_git(sandboxes, make_tree):
    """No patch can have it: both sides of the difference are the same."""
    tree = make_tree(OTHERS, "*.txt text eol=crlf")
    taken, _ = await tree.change(sandboxes, "sed -i 's/\\r$//' lf.txt; echo x > new.md")
    assert taken.text.count("diff --git") == 1 and "b/new.md" in taken.text


IDENT = {"id.txt": b"a $Id$\nb\n", "other.txt": b"$Id$\n", "id.c": b"/* $Id$ */\r\nint a;\r\n", "none.txt": b"c\n"}


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("true", []),
        ("sed -i 's/^b/b2/' id.txt", ["id.txt"]),
        ("echo 'a $Id: mine $' > id.txt", ["id.txt"]),
        ("echo '$Id: $' > other.txt; sed -i 's/int a/int b/' id.c", ["id.c", "other.txt"]),
        ("printf '$Id: of a new file $\\n' > new.txt; sed -i s/c/d/ none.txt", ["new.txt", "none.txt"]),
        ("rm .gitattributes; sed -i 's/^b/b2/' id.txt", [".gitattributes", "id.txt"]),
    ],
)
async def test_files_in_which_git_writes_a_name_keep_their_bytes(sandboxes, make_tree, command, names):
    tree = make_tree(IDENT, "* ident")
    taken, state = await tree.change(sandboxes, command)
    found = [line.split(" b/")[1] for line in taken.text.split("\n") if line.startswith("diff --git")]
    assert sorted(found) == names
    assert await tree.with_patch(sandboxes, taken.text) == state


async def test_line_ends_of_mixed_files_and_of_new_files(sandboxes, make_tree):
    tree = make_tree(
        {"notes.txt": b"a\r\nb\nc\r\n", "lf.txt": b"a\r\nb\n", 'odd [1]\\"*.txt': b"a\r\nb\n"},
        "*.txt text",
    )
    taken, state = await tree.change(
        sandboxes,
        "printf 'z\\n' >> notes.txt; printf 'q\\n' >> odd*.txt; sed -i 's/\\r$//' lf.txt; "
        "printf 'new\\r\\nfile\\r\\n' > new.txt",
    )
    assert await tree.with_patch(sandboxes, taken.text) == state


async def test_a_patch_is_utf8_whatever_the_files_are(sandboxes, make_tree):
    """Two files would hold two patches where one of them cannot hold its bytes."""
    files = {
        "latin.txt": b"caf\xe9 1\n",
        "calc.py": b"a - b\n",
        "late.txt": b"x" * 9000 + b"\n\0\n",
        "plain.txt": b"p\n",
    }
    tree = make_tree(files)
    change = f"{LATIN}; {FIX}; echo more >> late.txt; printf '\\377\\n' > $'n\\xe4me \\xc3\\xa9.txt'"
    taken, state = await tree.change(sandboxes, change)
    assert taken.text.encode().decode() == taken.text and "\0" not in taken.text
    assert taken.text.count("GIT binary patch") == 3 and "+a + b" in taken.text
    assert "+caf\ufffd 2" in taken.shown  # what reads the code of a change still reads it
    assert await tree.with_patch(sandboxes, taken.text) == state


async def test_attributes_do_not_hide_the_code_of_a_change(sandboxes, make_tree):
    tree = make_tree({"calc.py": b"a - b\n"})
    taken, _ = await tree.change(sandboxes, f"{FIX}; echo '*.py -diff' > .gitattributes")
    assert "+a + b" in taken.text


async def test_a_patch_that_was_handed_in_keeps_its_bytes(sandboxes, make_tree):
    tree = make_tree({"latin.txt": b"caf\xe9 1\n"})
    sandbox = await sandboxes.create(tree.workspace, owner="agent")
    await sandbox.exec(f"{LATIN}; git diff > /tmp/p", timeout_s=30)
    state = await state_of(sandbox)
    written = (await sandbox.exec("base64 -w0 /tmp/p", timeout_s=30)).output
    text = base64.b64decode(written).decode("utf-8", "surrogateescape")
    taken = await submitted_patch(sandbox, tree.base_commit, text, 60)
    plain = await submitted_patch(sandbox, tree.base_commit, "diff --git a/x b/x\n", 60)
    broken = await submitted_patch(sandbox, tree.base_commit, "caf\udce9 \ud83d", 60)
    await sandbox.close()
    assert await tree.with_patch(sandboxes, taken.text) == state and taken.note == ""
    assert plain.text == "diff --git a/x b/x\n"
    assert broken.text == "caf\ufffd \ufffd"
    assert "does not apply" in broken.note and broken.text.encode()


async def test_many_new_files_are_left_out_and_the_fix_stays(sandboxes, make_tree):
    tree = make_tree({"calc.py": b"a - b\n", "lib/known.py": b"x = 1\n", "data/a.json": b"{}\n"})
    many = "mkdir -p build/deep; for i in $(seq 300); do seq $i 1200 > build/deep/$i.txt; done"
    flat = "for i in $(seq 300); do seq $i 1100 > data/$i.json; done; echo '{1}' > data/a.json"
    taken, _ = await tree.change(sandboxes, f"{FIX}; {many}; {flat}; echo 'y = 1' > lib/new.py")
    assert "+a + b" in taken.text and "b/lib/new.py" in taken.text and "+{1}" in taken.text
    assert "b/build" not in taken.text and "b/data/1.json" not in taken.text
    assert len(taken.text) < MAX_PATCH_BYTES and "'build/'" in taken.note and "new files" in taken.note


async def test_a_change_of_the_base_s_own_files_that_is_too_large_is_named(sandboxes, make_tree):
    tree = make_tree({f"{name}.txt": b"\n" for name in "abc"})
    noise = "for n in a b c; do head -c 600000 /dev/urandom | base64 -w70 > $n.txt; done; echo 1 > new.txt"
    taken, _ = await tree.change(sandboxes, noise)
    assert taken.text == "" and "larger" in taken.note


async def test_what_tools_leave_behind_is_told_from_the_repository_s_own_files(sandboxes, make_tree):
    known = ("a.orig", "b.swp", "node_modules/m.js", "p.egg-info/PKG-INFO", ".venv/v.py", "t.rej")
    tree = make_tree(dict.fromkeys(known, b"known\n"))
    new = "mkdir -p sub/node_modules; echo 1 > c.orig; echo 1 > sub/node_modules/n.js; echo 1 > node_modules/new.js"
    taken, _ = await tree.change(sandboxes, f"for n in {' '.join(known)}; do echo mine > $n; done; {new}")
    assert all(f"+++ b/{name}" in taken.text for name in known)
    assert taken.text.count("diff --git") == len(known)


async def test_a_line_of_a_large_file_of_the_base(sandboxes, make_tree):
    tree = make_tree({"table.txt": b"".join(b"%d\n" % number for number in range(300_000))})
    taken, state = await tree.change(sandboxes, "sed -i 's/^777$/seven/' table.txt")
    assert "+seven" in taken.text and len(taken.text) < 1000
    assert await tree.with_patch(sandboxes, taken.text) == state


async def test_a_patch_of_a_hundred_megabytes_is_none():
    taken = await submitted_patch(None, "abc", "+" * 100_000_000, 1.0)
    assert taken.text == "" and "larger than" in taken.note
