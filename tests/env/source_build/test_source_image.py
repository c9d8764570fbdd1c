"""Images made of this machine's programs, an environment and a tree; and what they are made of."""

import io
import os
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from swe_rl.dataset.instance import Instance, InstanceError, Source
from swe_rl.env.source_build import environment as environments
from swe_rl.env.source_build import image as module
from swe_rl.env.source_build.build import Built
from swe_rl.env.source_build.environment import Environment, _relocate_environment
from swe_rl.env.source_build.host_files import links_on_the_way, loaded_libraries, system_files
from swe_rl.env.source_build.image import LABEL, ensure_image
from swe_rl.env.source_build.interpreter import copy_interpreter, copy_prefix, find_prefix
from swe_rl.env.source_build.layout import ENVIRONMENT, activate_script
from swe_rl.env.source_build.origin import Origin, hash_of_file
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.source_build.requirements import requirements_of
from swe_rl.env.source_build.tar import write_tar
from swe_rl.sandbox.process.overlay import can_be_shared

SOURCE = Source("b-1.0", "applies forward", "3.9")
INSTANCE = Instance("a__b-1", "a/b", "c" * 40, "s", "p", "t", ("x",), (), image="swebench/b:latest", source=SOURCE)


class FakeEngine:
    """Keeps each image's Dockerfile and the names in its layer."""

    def __init__(self):
        self.images, self.labels = {}, {}

    def has_image(self, name):
        return name in self.images

    def label_of(self, name, label):
        return self.labels.get(name)

    def build_image(self, name, context):
        with tarfile.open(fileobj=context) as tar:
            recipe = tar.extractfile("Dockerfile").read().decode()
            layer = next(member for member in tar.getnames() if member != "Dockerfile")
            with tarfile.open(fileobj=tar.extractfile(layer)) as inner:
                self.images[name] = (recipe, inner.getnames())
        for line in recipe.splitlines():
            if line.startswith(f"LABEL {LABEL}="):
                self.labels[name] = line.partition("=")[2]


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A build that is done, and few programs."""
    for path in ("tree/.git/HEAD", "environment/bin/activate", "environment/envs/testbed/bin/python"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    made = Built(tmp_path / "tree", Environment(tmp_path / "environment", "b-1.0-py3.9-0"), "1.0")
    monkeypatch.setattr(module, "build_source", lambda instance, cache: made)
    monkeypatch.setattr(module, "system_files", lambda: [Path("/bin/sh")])
    return made


def test_an_image_has_three_layers_under_the_official_name(built, tmp_path):
    engine, said = FakeEngine(), []
    assert ensure_image(INSTANCE, tmp_path, engine, said.append)
    base, environment, own = sorted(engine.images, key=lambda name: "base environment".find(name.split("/")[1][:4]) % 9)
    by_kind = {name.split(":")[0]: engine.images[name] for name in (base, environment, own)}
    assert by_kind["swe_rl/base"][0].startswith("FROM scratch\nADD base.tar /")
    assert "root/.bashrc" in by_kind["swe_rl/base"][1] and "tmp" in by_kind["swe_rl/base"][1]
    assert 'ENV PATH="/opt/miniconda3/envs/testbed/bin:' in by_kind["swe_rl/environment"][0]
    assert "opt/miniconda3/envs/testbed/bin/python" in by_kind["swe_rl/environment"][1]
    recipe, names = by_kind["swebench/b"]
    assert recipe.startswith("FROM swe_rl/environment:b-1.0-py3.9-0-") and "ADD tree.tar /testbed/" in recipe
    assert "./.git/HEAD" in names and len(said) == 3


def test_an_image_that_is_there_is_used_as_it_is(built, tmp_path):
    engine = FakeEngine()
    engine.images["swebench/b:latest"] = ("somebody else's", [])
    assert not ensure_image(INSTANCE, tmp_path, engine) and len(engine.images) == 1
    engine.labels["swebench/b:latest"] = "b-0.9-py3.9-0"  # ours, of another recipe
    assert ensure_image(INSTANCE, tmp_path, engine, lambda _: None)
    assert not ensure_image(INSTANCE, tmp_path, engine)


def test_without_image_and_source_the_way_out_is_said(tmp_path):
    official = Instance("a__b-1", "a/b", "c" * 40, "s", "p", "t", ("x",), (), image="swebench/b:latest")
    with pytest.raises(InstanceError, match=r"swebench/b:latest is not in the engine.*images_action=pull"):
        ensure_image(official, tmp_path, FakeEngine())


@pytest.mark.slow
def test_programs_come_with_their_libraries_and_links():
    files = system_files()
    assert any("libc.so" in path.name for path in files)
    steps = {str(step) for path in files for step in links_on_the_way(path)}
    assert not [path for path in files if str(path).startswith(("/root/", "/home/", "/etc/ssl", "/etc/ssh"))]
    assert {"/bin"} & steps if Path("/bin").is_symlink() else "/bin/bash" in steps
    assert loaded_libraries(Path("/etc/passwd")) == frozenset()


def test_a_tar_is_the_same_every_time_and_roots(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "run").write_text("x")
    (tmp_path / "in" / "run").chmod(0o750)
    (tmp_path / "in" / "link").symlink_to("run")
    packed = []
    for _ in range(2):
        out = io.BytesIO()
        write_tar(out, folders={"/opt": tmp_path / "in"}, texts={"/etc/x": "1"}, empty={"/tmp": 0o1777})
        packed.append(out.getvalue())
    assert packed[0] == packed[1]
    with tarfile.open(fileobj=io.BytesIO(packed[0])) as tar:
        members = {member.name: member for member in tar}
    assert members["opt/run"].mode == 0o754 and members["opt/link"].linkname == "run"
    assert members["tmp"].mode == 0o1777 and {member.uid for member in members.values()} == {0}


def test_the_activate_script_is_what_official_scripts_expect(tmp_path):
    (tmp_path / "activate").write_text(activate_script("1.0rc1"))
    script = f"set -uxo pipefail; . {tmp_path}/activate; conda activate testbed; . {tmp_path}/activate; env"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, check=True
    )
    assert f"PATH={ENVIRONMENT}/bin:/opt/miniconda3/bin:/usr/bin:/bin\n" in done.stdout
    assert "PIP_NO_INDEX=1\n" in done.stdout and "SETUPTOOLS_SCM_PRETEND_VERSION=1.0rc1\n" in done.stdout


def test_an_environment_names_where_it_will_be(tmp_path):
    prefix = tmp_path / "prefix"
    packages = prefix / "lib" / "python3.9" / "site-packages"
    packages.mkdir(parents=True)
    (prefix / "bin").mkdir()
    (prefix / "bin" / "pytest").write_text(f"#!{prefix}/bin/python\n")
    (packages / "b.egg-link").write_text(f"{tmp_path}/tree/src\n")
    (packages / "c.so").write_bytes(b"\0" + str(prefix).encode())
    _relocate_environment(prefix, {str(prefix): ENVIRONMENT, f"{tmp_path}/tree": "/testbed"})
    assert (prefix / "bin" / "pytest").read_text() == f"#!{ENVIRONMENT}/bin/python\n"
    assert (packages / "b.egg-link").read_text() == "/testbed/src\n"
    assert str(prefix).encode() in (packages / "c.so").read_bytes()


def test_requirements_are_the_trees_own(tmp_path):
    (tmp_path / "tests" / "requirements").mkdir(parents=True)
    (tmp_path / "tests" / "requirements" / "py3.txt").write_text("pytz\n")
    (tmp_path / "pyproject.toml").write_text('[build-system]\nrequires = ["setuptools>=40", "flit_core<4"]\n')
    script = ": '>>>>> Start Test Output'\n{}\n"
    found = requirements_of(tmp_path, script.format("tox --current-env -epy39 -v -- t.py"), "Sphinx")
    assert "flit_core<4" in found.build and "setuptools>=40" not in found.build
    assert found.tools == ("tox", "tox-current-env", "pytest") and [path.name for path in found.files] == ["py3.txt"]
    assert requirements_of(tmp_path, script.format("pytest -rA t.py"), "pytest").tools == ()
    assert requirements_of(tmp_path, script.format("./tests/runtests.py a.b"), "Django").tools == ()


def test_an_interpreter_that_is_not_there_is_an_error_with_the_way_to_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path))
    with pytest.raises(BuildError, match=r"no Python 3\.99 .* uv python install 3\.99"):
        find_prefix("3.99")


def test_a_copied_interpreter_finds_its_library_beside_it(tmp_path):
    prefix = tmp_path / "a" / "longer" / "folder" / "3.9.1"
    (prefix / "bin").mkdir(parents=True)
    text = b"\x7fELF..\0" + f"{prefix}/lib\0{prefix}/share\0{prefix}/lib/x\0".encode()
    (prefix / "bin" / "python3.9").write_bytes(text)
    copy_prefix(prefix, tmp_path / "copy", "3.9")
    found = (tmp_path / "copy" / "bin" / "python3.9").read_bytes()
    assert len(found) == len(text) and b"\0$ORIGIN/../lib\0" in found
    assert f"{prefix}/lib\0".encode() not in found and f"{prefix}/lib/x\0{''}".encode() in found


def test_a_copied_interpreter_has_no_package_and_runs_elsewhere(tmp_path):
    prefix = tmp_path / "versions" / "3.9.1"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python3.9").write_text("#!/bin/sh\necho ran\n")
    (prefix / "bin" / "python3.9").chmod(0o755)
    (prefix / "bin" / "pip").write_text(f"#!{prefix}/bin/python\n")
    for path in ("site-packages/x.py", "unittest/test/a.py", "test/b.py", "os.py"):
        file = prefix / "lib" / "python3.9" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    python = copy_prefix(prefix, tmp_path / "copy", "3.9")
    found = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*") if not path.is_dir()}
    assert found == {
        "bin/python",
        "bin/python3",
        "bin/python3.9",
        "lib/python3.9/os.py",
        "lib/python3.9/unittest/test/a.py",
    }
    assert subprocess.run([python], capture_output=True, text=True, check=True).stdout == "ran\n"


def test_an_interpreter_is_compiled_once_for_all_its_copies(tmp_path):
    prefix = tmp_path / "versions" / "3.9.1"
    program = prefix / "bin" / "python3.9"
    cache = prefix / "lib" / "python3.9" / "__pycache__"
    cache.mkdir(parents=True)
    (cache / "os.cpython-39.pyc").write_text("the user's")
    program.parent.mkdir()
    told = tmp_path / "told"
    program.write_text(
        f'#!/bin/sh\necho "$2" >> {told}\nmkdir "$6/python3.9/__pycache__"\ntouch "$6/python3.9/__pycache__/ours"\n'
    )
    program.chmod(0o755)
    for name in ("a", "b"):
        python = copy_interpreter(prefix, tmp_path / name, "3.9", tmp_path / "interpreters")
        assert python == tmp_path / name / "bin" / "python"
        assert [path.name for path in (tmp_path / name).rglob("__pycache__/*")] == ["ours"]
    assert told.read_text() == "compileall\n"
    os.utime(program, (1_600_000_000, 1_600_000_000))
    copy_interpreter(prefix, tmp_path / "c", "3.9", tmp_path / "interpreters")
    assert told.read_text() == "compileall\ncompileall\n"


def test_an_environment_that_moves_keeps_the_caches_of_what_does_not_change(tmp_path):
    lib = tmp_path / "lib" / "python3.9"
    for name in ("site-packages/a.py", "_sysconfigdata_x.py", "os.py"):
        path = lib / name
        (path.parent / "__pycache__").mkdir(parents=True, exist_ok=True)
        path.write_text("place = '/old'\n")
        (path.parent / "__pycache__" / f"{path.stem}.cpython-39.pyc").write_text("")
    (tmp_path / "bin").mkdir()
    changed = environments._relocate_environment(tmp_path, {"/old": "/new"})
    assert sorted(changed) == [lib / "_sysconfigdata_x.py", lib / "site-packages"]
    assert [path.name for path in tmp_path.rglob("*.pyc")] == ["os.cpython-39.pyc"]
    assert (lib / "site-packages" / "a.py").read_text() == "place = '/new'\n"


def test_an_environment_that_does_not_start_is_made_of_other_days(tmp_path, monkeypatch):
    tried = []

    def fill(filling, tree, until):
        tried.append(until and until[:10])
        assert tree.is_dir() and list(filling._made.folder.iterdir()) == []
        (filling._made.folder / "half").write_text("")
        if len(tried) < 2:
            raise BuildError("first")

    monkeypatch.setattr(environments._Filling, "_fill", fill)
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "lib.py").write_text("")
    os.utime(folder / "lib.py", (1_600_000_000, 1_600_000_000))
    origin = Origin("b", "1.0", "b-1.0", folder)
    made = environments.make_environment(tmp_path / "cache", INSTANCE, origin)
    assert tried == ["2020-10-13", "2020-09-20"] and [path.name for path in (tmp_path / "cache").iterdir()] == [
        made.key
    ]
    shutil.rmtree(folder)  # to find it again nothing is unpacked
    assert environments.make_environment(tmp_path / "cache", INSTANCE, origin) == made and len(tried) == 2
    tried.clear()
    folder.mkdir()
    late = replace(INSTANCE, source=replace(SOURCE, until="2021-01-01", packages=("dask",)))
    with pytest.raises(BuildError, match="first"):
        environments.make_environment(tmp_path / "other", late, origin)
    assert tried == ["2021-01-01"] and list((tmp_path / "other").iterdir()) == []
    assert environments.environment_key(late, origin) != made.key


def test_what_an_installer_linked_becomes_the_environment_s_own(tmp_path, monkeypatch):
    """Sandboxes share it: a link that another environment gets changes the ctime by which a grader sees what is new."""
    origin = Origin("o", "1.0", "o-1.0", tmp_path / "o-1.0.tar.gz")
    folder = tmp_path / "cache" / environments.environment_key(INSTANCE, origin)
    installed = folder / "envs" / "testbed" / "module.py"
    installed.parent.mkdir(parents=True)
    cached = tmp_path / "of the installer.py"
    cached.write_text("pass\n")
    cached.chmod(0o640)
    os.utime(cached, (1e9, 1e9))
    os.link(cached, installed)
    environments.make_environment(tmp_path / "cache", INSTANCE, origin)
    status = installed.stat()
    assert (status.st_nlink, status.st_mode & 0o777, status.st_mtime) == (1, 0o640, 1e9)
    assert installed.read_text() == "pass\n" and cached.stat().st_nlink == 1
    assert can_be_shared(folder) and [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]

    def ran(command, **options):
        asked.append(options["environment"]["UV_LINK_MODE"])
        return ""

    asked = []
    monkeypatch.setattr(environments, "run_program", ran)
    environments._Installer(tmp_path / "python", "o-1.0").install(["x"], until=None)
    assert asked == ["copy"]


def test_the_base_image_does_not_change_with_the_times_of_this_machines_files(built, tmp_path, monkeypatch):
    program = tmp_path / "program"
    monkeypatch.setattr(module, "system_files", lambda: [program])
    names = []
    for text, time in (("one", 1e9), ("one", 1.5e9), ("two", 1.5e9)):
        program.write_text(text)
        os.utime(program, (time, time))
        hash_of_file.cache_clear()
        engine = FakeEngine()
        ensure_image(INSTANCE, tmp_path, engine, lambda _: None)
        names.append(next(name for name in engine.images if name.startswith("swe_rl/base")))
    assert names[0] == names[1] != names[2]


def test_a_link_to_a_folder_is_a_part_of_the_base(monkeypatch, tmp_path):
    """/bin is one where /usr holds everything; what it leads to is what counts, and no content of it is read."""
    link = tmp_path / "bin"
    names = []
    monkeypatch.setattr(module, "system_files", lambda: [link])
    for target in ("here", "there"):
        (tmp_path / target).mkdir()
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        names.append(module._ensure_base(FakeEngine(), lambda _: None)[0])
    assert names[0] != names[1]
