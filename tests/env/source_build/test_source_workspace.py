"""What process sandboxes get of an instance that is built from source."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swe_rl.config.choices import SandboxKind
from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance, InstanceError, Source
from swe_rl.env.make import make_env
from swe_rl.env.source_build import build as module
from swe_rl.env.source_build.build import Built, SourceWorkspaces
from swe_rl.env.source_build.environment import Environment
from swe_rl.env.source_build.program import BuildError

SOURCE = Source("b-1.0", "applies forward", "3.9")
INSTANCE = Instance("a__b-1", "a/b", "c" * 40, "s", "p", "t", ("x",), (), image="swebench/b:latest", source=SOURCE)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The caches that builds were asked for."""
    caches: list[Path] = []

    def build(instance: Instance, cache: Path) -> Built:
        caches.append(cache)
        return Built(cache / "tree", Environment(cache / "environment", "b-1.0-py3.9-0"), "1.0")

    monkeypatch.setattr(module, "build_source", build)
    return caches


def test_a_process_sandbox_gets_tree_and_environment_where_official_scripts_expect_them(asked, tmp_path):
    env = make_env(EnvConfig(name="jsonl", dataset="x.jsonl"), tmp_path, SandboxKind.process)
    made = env.workspace(INSTANCE)
    assert (made.path, made.workdir, made.image) == (tmp_path / "sources" / "tree", "/testbed", None)
    assert made.toolchain is not None
    assert (made.toolchain.folder, made.toolchain.seen_as) == (tmp_path / "sources/environment", "/opt/miniconda3")
    settings = dict(made.toolchain.variables)
    assert settings["PATH"].startswith("/opt/miniconda3/envs/testbed/bin:")
    assert settings["SETUPTOOLS_SCM_PRETEND_VERSION"] == "1.0"
    container = make_env(EnvConfig(name="jsonl", dataset="x.jsonl"), tmp_path, SandboxKind.docker)
    assert container.workspace(INSTANCE).image == "swebench/b:latest" and len(asked) == 1


def test_it_is_built_once_however_many_ask(asked, tmp_path):
    workspaces = SourceWorkspaces(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(workspaces.workspace, [INSTANCE] * 32))
    assert len(asked) == 1 and len(set(made)) == 1


def test_a_build_that_failed_is_tried_again(asked, tmp_path, monkeypatch):
    workspaces, build = SourceWorkspaces(tmp_path), module.build_source

    def fail(instance: Instance, cache: Path) -> Built:
        raise BuildError("no network")

    monkeypatch.setattr(module, "build_source", fail)
    with pytest.raises(BuildError):
        workspaces.workspace(INSTANCE)
    monkeypatch.setattr(module, "build_source", build)
    assert workspaces.workspace(INSTANCE).path == tmp_path / "tree"


def test_without_a_source_the_way_out_is_said(tmp_path):
    bare = Instance("a__b-1", "a/b", "c" * 40, "s", "p", "t", ("x",), (), image="swebench/b:latest")
    with pytest.raises(InstanceError, match=r"a__b-1.*source.*swebench/b:latest.*sandbox=docker"):
        SourceWorkspaces(tmp_path).workspace(bare)
