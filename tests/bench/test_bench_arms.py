import pytest

from bench.arms import CONF, ArmError, router_config
from swe_rl.config.compose import compose


@pytest.mark.parametrize("name", sorted(path.stem for path in CONF.glob("*.yaml")))
def test_an_arm_is_what_hydra_composes(name):
    assert router_config(name) == compose([f"router={name}"]).config.router


def test_caps_and_keys():
    assert router_config("cap:20").max_programs_per_engine == 20
    arm = router_config("tr:pause_at=0.9,tick_s=2")
    assert (arm.name, arm.pause_at, arm.tick_s) == ("tr", 0.9, 2)


@pytest.mark.parametrize("arm", ["nobody", "tr:pause=1", "tr:pause_at"])
def test_unknown_arms(arm):
    with pytest.raises(ArmError, match=arm.partition(":")[0]):
        router_config(arm)
