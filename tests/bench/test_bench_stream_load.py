"""Groups that flow through the simulator, as `rollout/flow.py` lets them."""

import pytest

from bench import stream_load
from bench.simulate_load import machine
from bench.stream_load import Pace, flowed

PACE = Pace(n=4, prompts=3, ahead=2, concurrency=36, steps=6, train_s=5.0)


@pytest.fixture(scope="module")
def on():
    return machine(1, "h200x8", 60_000)


def test_figures_depend_on_the_arguments_alone_and_pace_bounds_what_is_begun(on, monkeypatch):
    most, begun = [], stream_load.FlowSimulation._tell

    def seen(self, group, left):
        most.append(len(self._numbers) + self._training)
        begun(self, group, left)

    monkeypatch.setattr(stream_load.FlowSimulation, "_tell", seen)
    first = flowed("tr+groups", on, PACE, 0)
    assert first == flowed("tr+groups", on, PACE, 0)
    assert max(most) == (1 + PACE.ahead) * PACE.prompts and len(first.ages) == PACE.steps * PACE.prompts
    assert 0 < first.trainer_idle_s < first.end_s - PACE.steps * PACE.train_s + 1e-6
