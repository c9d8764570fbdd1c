from dataclasses import replace

import pytest

from swe_rl.config.choices import ROUTERS
from swe_rl.config.schema import RouterConfig
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.router.core import EngineAdded, EngineLost, Place, ProgramReleased, RequestArrived, RequestFinished
from swe_rl.router.make import make_router

ENGINES = [ScriptedEngine(lambda prompt: [1], name=name) for name in ("e0", "e1")]


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_serves_a_program_and_survives_the_loss_of_all_engines(name):
    router = make_router(RouterConfig(name=name), ENGINES, capacity_tokens=1000, max_num_seqs=4)
    assert (router.name, router.engines) == (name, ("e0", "e1"))
    assert router.handle(RequestArrived("p", "r0", 100), 0.0) == [Place("r0", "e0")]
    router.handle(EngineLost("e0"), 1.0)
    router.handle(RequestFinished("p", "r0", 100), 1.1)
    (moved,) = router.handle(RequestArrived("p", "r1", 120), 2.0)
    assert moved.engine == "e1" and moved.reason
    router.handle(EngineLost("e1"), 3.0)
    router.handle(RequestFinished("p", "r1", 120), 3.0)
    assert router.handle(RequestArrived("p", "r2", 140), 4.0) == []
    assert router.handle(RequestArrived("q", "r3", 50), 4.0) == []
    router.handle(RequestFinished("q", "r3", 50), 4.5)
    assert router.handle(EngineAdded("e0"), 5.0) == [Place("r2", "e0")]
    snapshot = router.snapshot()
    assert snapshot["router"] == name and snapshot["engines"]
    router.handle(RequestFinished("p", "r2", 150), 6.0)
    for program in "pq":
        router.handle(ProgramReleased(program), 6.0)
    assert router.snapshot()["programs"] == []


def test_settings_reach_the_policy():
    config = RouterConfig(name="tr", acting_token_weight=0.1, tick_s=2.0, pause_at=0.5, resume_at=0.5, max_hold_s=9.0)
    router = make_router(config, ENGINES, capacity_tokens=1000)
    assert router.tick_s == 2.0
    for number in range(3):
        router.handle(RequestArrived(f"p{number}", f"r{number}", 300), 0.0)
    held = router.snapshot()["held_requests"]
    assert held == 1  # two engines of 1000 tokens, half of which may be used
    cap = make_router(replace(config, name="cap", max_programs_per_engine=1), ENGINES, max_num_seqs=64)
    assert [len(cap.handle(RequestArrived(p, p, 1), 0.0)) for p in "abc"] == [1, 1, 0]
