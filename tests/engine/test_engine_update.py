"""New weights for several engines: at the same time, and every failure told."""

import asyncio

import pytest

from swe_rl.engine.engine import EngineError, EngineState, WeightSyncError
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.engine.update import update_engines
from swe_rl.files.disk import DiskError


class Taking(ScriptedEngine):
    """Takes weights only when all `together` are at it; `error` is raised then, after which it may be gone."""

    def __init__(self, name, together=None, error=None, state=EngineState.up, after=EngineState.up):
        super().__init__(lambda prompt: [0], name=name)
        self.together, self.error, self.state, self.after = together, error, state, after
        self.updates = []

    async def update_weights(self, weights, version):
        if self.together is not None:
            await self.together.wait()
        if self.error:
            self.state = self.after
            raise self.error
        self.updates.append(version)


async def test_they_take_them_side_by_side():
    together = asyncio.Barrier(3)
    engines = [Taking(f"engine{n}", together) for n in range(3)]
    async with asyncio.timeout(5):
        await update_engines(engines, {}, 4)
    assert [one.updates for one in engines] == [[4]] * 3


async def test_every_failure_is_told_and_like_ones_once():
    together = asyncio.Barrier(4)
    errors = [EngineError("full"), None, EngineError("full"), EngineError("hot")]
    engines = [Taking(f"engine{n}", together, error) for n, error in enumerate(errors)]
    with pytest.raises(WeightSyncError, match=r"step 7 did not reach 3 of 4 engines") as caught:
        await update_engines(engines, {}, 7)
    assert "engine0, engine2: full; engine3: hot" in str(caught.value)
    assert list(caught.value.failures) == ["engine0", "engine2", "engine3"]
    assert isinstance(caught.value, EngineError) and caught.value.__cause__ is errors[0]
    assert engines[1].updates == [7]  # it was not left half-way


async def test_what_is_no_failure_of_an_engine_is_raised_as_it_is():
    engines = [Taking("engine0", error=EngineError("x")), Taking("engine1", error=DiskError("no space"))]
    with pytest.raises(DiskError, match="no space"):
        await update_engines(engines, {}, 1)


async def test_an_engine_that_is_gone_for_good_is_left_out():
    engines = [Taking("engine0", error=EngineError("dead"), state=EngineState.gone), Taking("engine1")]
    await update_engines(engines, {}, 1)
    dying = [Taking("engine0", error=EngineError("dead"), after=EngineState.gone), Taking("engine1")]
    await update_engines(dying, {}, 1)  # it went while it took them
    for last in (engines[:1], dying[:1]):
        with pytest.raises(WeightSyncError, match="dead"):
            await update_engines(last, {}, 2)
