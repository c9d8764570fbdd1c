"""An environment that lacks what skipped tests need, mended by what a real runner says of them."""

import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from swe_rl.config.choices import Isolation
from swe_rl.config.schema import SandboxConfig
from swe_rl.dataset.instance import Instance, Source
from swe_rl.env.grading.swebench import grade_by_swebench
from swe_rl.env.grading.swebench_spec import complete_instance
from swe_rl.env.proof.prove import Prover
from swe_rl.env.source_build import environment as environments
from swe_rl.env.source_build.program import BuildError
from swe_rl.errors import UserError
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import Workspace
from tests.support.pytest_alone import OPTIONS

BEFORE = """import pytest

try:
    import tinydep
except ImportError:
    tinydep = None
requires_tinydep = pytest.mark.skipif(tinydep is None, reason="requires tinydep")
requires_other = pytest.mark.skipif(True, reason="requires pynio")


@requires_tinydep
@pytest.mark.parametrize("number", [0, 1])
def test_kept(number):
    assert tinydep.same(number) == number


@requires_other
def test_never():
    pass
"""
AFTER = BEFORE + "\n\n@requires_tinydep\ndef test_fixed():\n    from calc import add\n\n    assert add(1, 2) == 3\n"
SOURCE = Source(tree="calc", python="3.9")


class Era:
    """Environments that are folders: `tinydep` is there where the source asks for it, and no other package is."""

    def __init__(self, tree, folder):
        self._tree, self._folder, self.made = tree, folder, []

    def workspace(self, instance):
        path = self._folder / "-".join(["env", *instance.source.optional])
        if not path.exists():
            self.made.append(instance.source.optional)
            shutil.copytree(self._tree, path)
            if "tinydep" in instance.source.optional:
                (path / "tinydep.py").write_text("def same(number):\n    return number\n")
        return Workspace(path=path)

    async def grade(self, instance, patch, sandboxes, timeout_s):
        return await grade_by_swebench(instance, patch, self.workspace(instance), sandboxes, timeout_s)

    def released(self, instance):
        return datetime(2020, 1, 1, tzinfo=UTC)

    def nearer(self, instance):
        return []

    def environment_digest(self, instance):
        return "-".join(instance.source.optional)

    def digests(self, instance):
        return "tests", "made of"


@pytest.fixture
def calc(tmp_path):
    """A tree whose add() subtracts, and the instance of it."""

    def git(*words):
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *name, *words], cwd=tree, check=True, capture_output=True, text=True).stdout

    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (tree / "test_calc.py").write_text(BEFORE)
    (tree / "conftest.py").write_text("")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "base")
    (tree / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    (tree / "test_calc.py").write_text(AFTER)
    patch, test_patch = git("diff", "--", "calc.py"), git("diff", "--", "test_calc.py")
    git("checkout", "-q", ".")
    names = [f"test_calc.py::test_{name}" for name in ("fixed", "kept[0]", "kept[1]")]
    tests = {"fail_to_pass": tuple(names[:1]), "pass_to_pass": tuple(names[1:])}
    base = git("rev-parse", "HEAD").strip()
    row = Instance("calc__calc-1", "calc/calc", base, "s", patch, test_patch, **tests, version="1.0", source=SOURCE)
    row = complete_instance(row)
    return tree, replace(row, eval_script=row.eval_script.replace("\npytest ", f"\npython -m pytest {OPTIONS} "))


@pytest.mark.slow
async def test_packages_that_a_real_runner_names_turn_a_failing_gold_patch_into_a_proof(calc, tmp_path):
    pytest.importorskip("swebench", reason="needs the extra swebench")
    tree, row = calc
    try:
        sandboxes = make_provider(SandboxConfig(isolation=Isolation.bubblewrap), tmp_path / "scratch", print)
    except UserError as error:
        pytest.skip(str(error))
    era = Era(tree, tmp_path)
    try:
        proof = await Prover(era, sandboxes, 1, 120.0).prove(row)
    finally:
        await sandboxes.close()
    assert proof.proven and proof.gold == ("resolved",) and proof.noop == "unresolved", proof.reason + proof.log_tail
    assert [(trial.change, trial.failing) for trial in proof.trials] == [
        ("", -1),
        ("with tinydep, pynio", 0),
    ]  # skipped, all of them
    assert proof.source == {"tree": "calc", "fix": "applies forward", "python": "3.9", "optional": ["tinydep", "pynio"]}
    assert era.made == [(), ("tinydep", "pynio")] and proof.environment == "tinydep-pynio"
    assert proof.applied(row).source.optional == ("tinydep", "pynio")


@pytest.mark.parametrize("there", [("tinydep", "pynio"), ("tinydep",), ()])
def test_of_optional_packages_those_are_installed_that_have_a_wheel(tmp_path, monkeypatch, there):
    """And nothing of any is built, whose setup code would run."""
    commands = []

    def run(argv, **_):
        commands.append(argv[5:])
        if set(argv[5:]) & ({"tinydep", "pynio"} - set(there)):
            raise BuildError("no solution found")
        return ""

    monkeypatch.setattr(environments, "run_program", run)
    installer = environments._Installer(tmp_path / "python", "b-1.0")
    left_out = installer.install_wheels(("tinydep", "pynio"), "2020-01-31T00:00:00Z")
    assert left_out == [name for name in ("tinydep", "pynio") if name not in there]
    assert all(command[:2] == ["--exclude-newer", "2020-01-31T00:00:00Z"] for command in commands)
    assert all("--only-binary" in command for command in commands)
    singles = [name for name in ("tinydep", "pynio") for _ in range(4 if name in left_out else 1)]
    assert [command[-1] for command in commands] == ["pynio", *(singles if left_out else [])]  # three later years
    commands.clear()
    assert installer.install_wheels((), None) == [] and not commands


def test_an_optional_package_without_a_wheel_in_its_days_gets_its_first_later_one(tmp_path, monkeypatch):
    """bottleneck had none for Python 3.9 in the days of xarray 0.17, and has one of the year after."""
    dates = []

    def run(argv, **_):
        command = argv[5:]
        later = [entry for entry in command if entry.startswith("bottleneck=")]
        dates.append(later)
        if "bottleneck" in command and not any(entry >= "bottleneck=2022-06-01" for entry in later):
            raise BuildError("no solution found")
        return ""

    monkeypatch.setattr(environments, "run_program", run)
    installer = environments._Installer(tmp_path / "python", "xarray-0.17.0", ("pytest=2021-12-31",))
    assert installer.install_wheels(("dask", "bottleneck"), "2021-03-28T06:33:04Z") == []
    assert dates == [[], [], [], ["bottleneck=2022-03-28T06:33:04Z"], ["bottleneck=2023-03-28T06:33:04Z"]]
