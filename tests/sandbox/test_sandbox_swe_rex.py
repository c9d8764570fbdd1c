"""Deployments of SWE-ReX by its own library: the local one here, a container in the docker lane."""

import pytest

from swe_rl.config.choices import SandboxKind
from swe_rl.config.compose import compose
from swe_rl.errors import UserError
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import Toolchain, Workspace
from swe_rl.sandbox.swe_rex import SweRex
from swe_rl.testing import check_sandbox

pytest.importorskip("swerex")


@pytest.mark.slow
def test_a_local_deployment_conforms(tmp_path):
    check_sandbox(SweRex, tmp_path, {"deployment": "local"})


@pytest.mark.parametrize(
    ("words", "workspace", "said"),
    [
        (["sandbox.params.deployment=moon"], Workspace(image="x"), "SWE-ReX has no such deployment"),
        (["sandbox.params.deployment=local"], Workspace(image="x"), "deployment=local has no images"),
        ([], Workspace(path="/nowhere"), "sandbox.image=IMAGE"),
        (["sandbox.params.deployment=local"], Workspace(path="/a", toolchain=Toolchain("/b", "/c")), "/b, .*these$"),
        (["+sandbox.params.options.colour=red"], Workspace(image="x"), "colour"),
    ],
)
async def test_what_a_deployment_does_not_have_is_a_users_mistake(words, workspace, said, tmp_path):
    config = compose(["sandbox=swe_rex", *words]).config.sandbox
    assert (config.kind, config.name) == (SandboxKind.custom, "swe_rex")
    provider = make_provider(config, tmp_path, pytest.fail)
    with pytest.raises(UserError, match=said):
        await provider.create(workspace, owner="o")
    await provider.close()
