"""Reading and writing files of a working copy from outside."""

import os
from pathlib import Path

import pytest

from swe_rl.sandbox.confined_path import MissingFileError, ensure_folders, read_confined, write_confined
from swe_rl.sandbox.process.sandbox import ProcessSandbox
from swe_rl.sandbox.sandbox import SandboxError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    return root


def read(root: Path, path: str, max_bytes: int = 100) -> bytes:
    return read_confined(root, path, workdir="/testbed", max_bytes=max_bytes)


def write(root: Path, path: str, content: bytes = b"new") -> None:
    write_confined(root, path, content, workdir="/testbed", uid=None)


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("l", "a/b/file"),
        ("l", "./a/../a/b/file"),
        ("a/l", "b/file"),
        ("a/b/l", "../../a/b/file"),
        ("l", "/testbed/a/b/file"),
    ],
)
def test_links_that_stay_inside_are_followed(root: Path, link: str, target: str):
    (root / link).symlink_to(target)
    assert read(root, link) == b"inside"


def test_folder_links_are_followed_inside(root: Path):
    (root / "d").symlink_to("a")
    assert read(root, "d/b/file") == b"inside"
    write(root, "d/b/other")
    assert (root / "a/b/other").read_bytes() == b"new"


@pytest.mark.parametrize("target", ["../secret", "/etc/passwd", "a/../../secret", "/testbed/../secret"])
def test_links_that_lead_out_are_refused(root: Path, target: str):
    (root / "l").symlink_to(target)
    with pytest.raises(SandboxError, match="leaves the sandbox"):
        read(root, "l")


@pytest.mark.parametrize("path", ["../secret", "a/../../secret", "/etc/passwd", "..", "a/b/../../..", "x\0"])
def test_paths_that_lead_out_are_refused(root: Path, path: str):
    for use in (read, write):
        with pytest.raises(SandboxError, match="leaves the sandbox|absolute"):
            use(root, path)


def test_a_written_file_replaces_a_link_and_never_goes_through_it(root: Path, tmp_path: Path):
    (root / "l").symlink_to(tmp_path / "secret")
    (root / "out").symlink_to(tmp_path)
    write(root, "l")
    assert (tmp_path / "secret").read_text() == "outside"
    assert (root / "l").read_bytes() == b"new" and not (root / "l").is_symlink()
    with pytest.raises(SandboxError, match="leaves"):
        write(root, "out/planted")
    assert not (tmp_path / "planted").exists()


def test_loops_pipes_folders_and_sizes(root: Path):
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    for path, words in (("loop", "links"), ("pipe", "regular"), ("a", "regular"), (".", "Is a directory")):
        with pytest.raises(SandboxError, match=words):
            read(root, path)
    with pytest.raises(SandboxError, match="larger than 5 bytes"):
        read(root, "a/b/file", max_bytes=5)
    with pytest.raises(SandboxError):
        write(root, "a")


def test_missing_files_have_an_error_of_their_own(root: Path):
    for path in ("none", "none/none", "a/b/file/none"):
        with pytest.raises(MissingFileError):
            read(root, path)


def test_writing_keeps_the_mode_and_makes_folders(root: Path):
    (root / "a/b/file").chmod(0o755)
    write(root, "a/b/file")
    assert (root / "a/b/file").stat().st_mode & 0o777 == 0o755
    write(root, "new/folder/file")
    assert (root / "new/folder/file").read_bytes() == b"new"
    assert [path.name for path in (root / "new/folder").iterdir()] == ["file"]


def test_ensure_folders_replaces_what_is_in_the_way(root: Path, tmp_path: Path):
    (root / "m").symlink_to(tmp_path)
    ensure_folders(root, "m/n/o")
    assert (root / "m/n/o").is_dir() and not (root / "m").is_symlink() and not (tmp_path / "n").exists()


async def test_through_a_sandbox(sandbox: ProcessSandbox):
    await sandbox.write_file("new/file.py", b"print('hi')\n")
    result = await sandbox.exec(
        "python new/file.py && echo more >> new/file.py && ln -s /etc/passwd escape", timeout_s=10
    )
    assert result.output == "hi\n"
    assert await sandbox.read_file("new/file.py") == b"print('hi')\nmore\n"
    for path in ("escape", "outside", "../work/calc.py"):
        with pytest.raises(SandboxError, match="leaves"):
            await sandbox.read_file(path)
    with pytest.raises(MissingFileError):
        await sandbox.read_file("nothing")
