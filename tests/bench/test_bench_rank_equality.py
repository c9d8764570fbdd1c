"""bench/rank_equality: several meshes of processes train the shipped model alike."""

from pathlib import Path

import pytest

from bench.rank_equality import Shape, main, parse, rows_for

TINY = Path(__file__).parents[2] / "swe_rl" / "model" / "checkpoints" / "tiny"


def test_names_of_meshes():
    meshes = [parse(one) for one in ("1", "dp2", "sp4", "dp2:sp2", "dp4:shard2")]
    assert meshes == [Shape(), Shape(2), Shape(1, 4), Shape(2, 2), Shape(4, 1, 2)]
    for wrong in ("tp2", "dp", "2dp", "dp2sp2"):
        with pytest.raises(SystemExit, match="a mesh is"):
            parse(wrong)


def test_rows_are_of_uneven_lengths():
    rows = rows_for(vocabulary=100, rows=4, tokens=64)
    lengths = [len(one.token_ids) for one in rows]
    assert len(set(lengths)) == 4 and max(lengths) == 64
    assert all(any(one.loss_mask) and len(one.loss_mask) == len(one.token_ids) for one in rows)


@pytest.mark.slow
def test_replicas_train_as_one_does(capsys):
    main(["1", "dp2:shard1", "--model-dir", str(TINY), "--rows", "4", "--tokens", "128"])
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[1:]] == ["1", "dp2:shard1"]
    for line in table[1:]:
        losses, norms, mean = map(float, line.split()[2:5])
        assert losses < 1e-5 and norms < 1e-4 and mean < 1e-2
