"""Whole trajectories over several processes: losses, metrics and weights are those of one process."""

from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent / "algo_rank_cases.py"
CASES = ("dp2_sp1_minis_gspo_tis", "dp1_sp2_minis_gspotoken_geometric", "dp1_sp2_minis_cispo_stale")


@pytest.fixture(scope="module")
def two_ranks(rank_cases, tmp_path_factory):
    return rank_cases.run_ranks(2, tmp_path_factory.mktemp("ranks"), CASES, script=SCRIPT)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_are_one(rank_cases, two_ranks, case):
    torch.set_num_threads(1)
    expected, got = rank_cases.plain(case), two_ranks[case]
    for one, other in zip(expected["metrics"], got["metrics"], strict=True):
        assert other == pytest.approx(one, rel=1e-5, abs=1e-5)
    for name, weights in expected["weights"].items():
        torch.testing.assert_close(torch.tensor(got["weights"][name]), torch.tensor(weights), rtol=0, atol=1e-5)
    assert any(one["ratio_max"] > 1.0 for one in expected["metrics"])
