"""`make_workspaces`: who waits for environments sees how far they are."""

import asyncio
import time
from types import SimpleNamespace

from swe_rl.env.source_build.program import BuildError
from swe_rl.run import mining


class Builds:
    """An environment in which the instance `slow` takes a while, and `broken` cannot be built."""

    def workspace(self, instance):
        if instance.instance_id == "broken":
            raise BuildError("no such release")
        if instance.instance_id == "slow":
            time.sleep(0.05)


def test_slow_builds_are_told_of(monkeypatch):
    monkeypatch.setattr(mining, "_SLOW_BUILD_S", 0.03)
    said = []
    instances = [SimpleNamespace(instance_id=name) for name in ("quick", "broken", "slow")]
    took_s = asyncio.run(mining.make_workspaces(Builds(), instances, said.append))
    assert said == ["built 3 of 3: slow took 0 s"]
    assert set(took_s) == {"quick", "broken", "slow"} and took_s["slow"] >= 0.05
