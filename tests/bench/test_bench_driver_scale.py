"""The driver's benchmark, made small: its ranks see every token of every trajectory, in order of the rows."""

import multiprocessing
import threading
from argparse import Namespace

import pytest

from bench import driver_scale


@pytest.fixture
def pipes():
    """To two ranks that are threads."""
    pairs = [multiprocessing.Pipe() for _ in range(2)]
    ranks = [threading.Thread(target=driver_scale._rank, args=(theirs,)) for _, theirs in pairs]
    for rank in ranks:
        rank.start()
    yield [ours for ours, _ in pairs]
    for ours, _ in pairs:
        ours.send(None)
    for rank in ranks:
        rank.join(10)


@pytest.mark.slow
async def test_ranks_see_every_token(pipes, tmp_path):
    options = Namespace(trajectories=3, turns=4, tokens=400, turns_per_s=200.0)
    figures = await driver_scale.measured(options, pipes, tmp_path)
    assert figures["ready_s"] >= figures["rows_s"] >= 0 and figures["peak_gb"] > 0
    assert figures["sampling"]["loop_lag_max_ms"] >= 0 and figures["after"]["loop_lag_max_ms"] >= 0
    assert [path.name for path in tmp_path.rglob(".rows*")] == []


async def test_a_rank_that_sees_something_else_is_told(pipes, tmp_path, monkeypatch):
    monkeypatch.setattr(driver_scale, "looked_at", lambda request: request.rows()[1:])
    options = Namespace(trajectories=3, turns=2, tokens=200, turns_per_s=200.0)
    with pytest.raises(SystemExit, match="the ranks saw"):
        await driver_scale.measured(options, pipes, tmp_path)
