"""bench/rank_equality: several meshes of processes train the shipped model alike."""

from pathlib import Path

import pytest

from bench.rank_equality import main, parse, rows_for

TINY = Path(__file__).parents[2] / "swe_rl" / "model" / "checkpoints" / "tiny"


def test_names_of_meshes():
    assert [parse(one) for one in ("1", "dp2", "sp4", "dp2:sp2")] == [(1, 1), (2, 1), (1, 4), (2, 2)]
    with pytest.raises(SystemExit, match="a mesh is"):
        parse("tp2")


def test_rows_are_of_uneven_lengths():
    rows = rows_for(vocabulary=100, rows=4, tokens=64)
    lengths = [len(one.token_ids) for one in rows]
    assert len(set(lengths)) == 4 and max(lengths) == 64
    assert all(any(one.loss_mask) and len(one.loss_mask) == len(one.token_ids) for one in rows)


@pytest.mark.slow
def test_two_ranks_train_as_one_does(capsys):
    main(["1", "dp2", "--model-dir", str(TINY), "--rows", "4", "--tokens", "128"])
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[1:]] == ["1", "dp2"]
    for line in table[1:]:
        losses, norms, mean = map(float, line.split()[2:5])
        assert losses < 1e-5 and norms < 1e-4 and mean < 1e-2
