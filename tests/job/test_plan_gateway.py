"""What plan and simulator say of the gateway: by hand, and that both say the same of equal loads."""

import pytest

from swe_rl.config.compose import compose
from swe_rl.job.plan import make_plan
from swe_rl.job.simulate import compare_routers
from swe_rl.plan.gateway import DRIVER_MS, PROCESS_GB, gateway_need


@pytest.fixture(scope="module")
def configs():
    return {count: compose(["+experiment=dp4_tr_atw01", f"gateway.processes={count}"]).config for count in (1, 2, 4)}


def test_by_hand(configs):
    alone = gateway_need(configs[1], 200, 8_192)
    assert alone.calls_per_s_at_most == pytest.approx(0.6 / 1.37e-3) and alone.cores == pytest.approx(200 * 1.37e-3)
    assert alone.load == pytest.approx(200 / alone.calls_per_s_at_most)
    two = gateway_need(configs[2], 200, 8_192)
    assert two.calls_per_s_at_most == pytest.approx(0.6 / 0.76e-3) and two.cores == pytest.approx(200 * 2.14e-3)
    assert two.memory_gb - alone.memory_gb == pytest.approx(2 * PROCESS_GB)
    assert gateway_need(configs[4], 200, 8_192).calls_per_s_at_most == pytest.approx(
        600 / DRIVER_MS
    )  # then the driver is busiest


def test_plan_and_simulator_agree():
    config = compose(
        ["layout=dp4", "hardware=h100x8", "model=qwen3_4b", "gateway.processes=2", "router=default"]
    ).config
    planned, simulated = make_plan(config)["gateway"], compare_routers(config)["gateway"]
    assert planned["processes"] == simulated["processes"] == 2
    assert planned["calls_per_s"] == pytest.approx(simulated["calls_per_s"], rel=0.3)
    assert planned["cores"] == pytest.approx(simulated["cores"], rel=0.3)
    assert 0 < planned["load"] < 1
