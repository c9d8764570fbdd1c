"""A small git repository to copy, and a provider for each isolation."""

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from swe_rl.config.choices import Isolation, SandboxKind
from swe_rl.config.schema import SandboxConfig
from swe_rl.sandbox.process import isolation as isolation_module
from swe_rl.sandbox.process.provider import ProcessProvider
from swe_rl.sandbox.process.sandbox import ProcessSandbox
from swe_rl.sandbox.sandbox import Workspace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


TRIAL = isolation_module._try_launcher


@pytest.fixture(scope="module")
def isolation_is_tried_each_time() -> Iterator[None]:
    """This is for tests of the trial itself. The others use what the trial of an equal provider found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation_module, "_try_launcher", TRIAL)
        yield


@pytest.fixture(scope="session")
def committed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository that each test gets a copy of: git makes it once, with seven processes."""
    folder = tmp_path_factory.mktemp("committed") / "workspace"
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "test_calc.py").write_text("from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n")
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("calc.py")
    (folder / "outside").symlink_to("/etc/hostname")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    git = "git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -qm first"
    subprocess.run(git, shell=True, cwd=folder, check=True)
    return folder


@pytest.fixture
def workspace(committed_folder: Path, tmp_path: Path) -> Workspace:
    return Workspace(path=shutil.copytree(committed_folder, tmp_path / "workspace", symlinks=True))


ProviderFactory = Callable[..., ProcessProvider]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[ProviderFactory]:
    """Makes providers in one scratch folder; closes them at the end."""
    made: list[ProcessProvider] = []

    def factory(isolation: Isolation = Isolation.none, **changes: object) -> ProcessProvider:
        config = SandboxConfig(isolation=isolation, **changes)  # type: ignore[arg-type]
        made.append(ProcessProvider(config, tmp_path / "scratch", warn=pytest.fail))
        return made[-1]

    yield factory
    for provider in made:
        await provider.close()


@pytest.fixture(params=[pytest.param(Isolation.bubblewrap, marks=needs_bwrap), Isolation.none], ids=str)
def isolation(request: pytest.FixtureRequest) -> Isolation:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
async def sandbox(make: ProviderFactory, isolation: Isolation, workspace: Workspace) -> ProcessSandbox:
    """One sandbox of each isolation; closed with its provider."""
    return await make(isolation).create(workspace, owner="test/one")


@pytest.fixture
async def isolated(make: ProviderFactory, workspace: Workspace) -> ProcessSandbox:
    return await make(Isolation.bubblewrap).create(workspace, owner="isolated")


ConfigOf = Callable[..., SandboxConfig]


@pytest.fixture(scope="session")
def engine_addresses() -> Iterator[Callable[[SandboxKind], str]]:
    """Engines of this machine, started when first asked for; skips where there can be none."""
    from contextlib import ExitStack

    from tests.sandbox.engines import NoEngineError, engine

    found: dict[SandboxKind, str | NoEngineError] = {}
    with ExitStack() as stack:

        def address(kind: SandboxKind) -> str:
            if kind not in found:
                try:
                    found[kind] = stack.enter_context(engine(kind))
                except NoEngineError as error:
                    found[kind] = error
            answer = found[kind]
            return pytest.skip(str(answer)) if isinstance(answer, NoEngineError) else answer

        yield address


@pytest.fixture
def container_config(engine_addresses: Callable[[SandboxKind], str]) -> ConfigOf:
    """The configuration of containers of this machine's engine; `changes` are keys of SandboxConfig."""
    from swe_rl.config.choices import PullPolicy
    from tests.sandbox import host_image

    def make(kind: SandboxKind, **changes: object) -> SandboxConfig:
        fixed: dict[str, object] = {
            "kind": kind,
            "host": engine_addresses(kind),
            "image": host_image.IMAGE,
            "mounts": host_image.mounts(),
            "pull": PullPolicy.never,
            "memory_gb": 0.5,
            "concurrency": 16,
        }
        return SandboxConfig(**(fixed | changes))  # type: ignore[arg-type]

    return make
