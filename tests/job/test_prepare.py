"""`job=prepare` replaces the files only when every split is proven."""

import pytest

from swe_rl.config.compose import compose
from swe_rl.dataset.records import read_instances
from swe_rl.env.bugs.env import DATA
from swe_rl.errors import UserError
from swe_rl.job import prepare as job


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data folder of its own, and a generator that takes the shipped instances."""

    def made(split, count, seed, progress):
        found = read_instances(DATA / f"{split}.jsonl")[:3]
        for one in found:
            progress(one)
        return found

    monkeypatch.setattr(job, "generate_instances", made)
    monkeypatch.setattr(job, "DATA", tmp_path / "data")
    return tmp_path / "data"


def prepared():
    return job.run(compose(["job=prepare"]).config, None)


def test_both_splits_are_written_and_then_unchanged(data, capsys):
    assert prepared() == 0
    assert {path.name for path in data.iterdir()} == {"train.jsonl", "heldout.jsonl"}
    assert read_instances(data / "train.jsonl") == read_instances(DATA / "train.jsonl")[:3]
    assert "written" in capsys.readouterr().out
    before = (data / "train.jsonl").stat().st_mtime_ns
    assert prepared() == 0
    assert "unchanged" in capsys.readouterr().out
    assert (data / "train.jsonl").stat().st_mtime_ns == before


def test_a_split_that_cannot_be_proven_leaves_the_files_alone(data, monkeypatch):
    prepared()
    before = {path.name: path.read_bytes() for path in data.iterdir()}

    def fails(split, count, seed, progress):
        if split == "heldout":
            raise ValueError("only 1 of 32")
        return []

    monkeypatch.setattr(job, "generate_instances", fails)
    with pytest.raises(ValueError, match="only 1"):
        prepared()
    assert {path.name: path.read_bytes() for path in data.iterdir()} == before


def test_a_data_set_that_cannot_be_had_leaves_the_embedded_files_alone(data, tmp_path):
    words = ["job=prepare", "env=swe_gym", f"env.dataset={tmp_path}/none.parquet", f"paths.cache={tmp_path}/cache"]
    with pytest.raises(UserError, match=r"none\.parquet is not there"):
        job.run(compose(words).config, None)
    assert not data.exists()


def test_as_many_as_ship():
    for split, count in job.COUNTS.items():
        assert len(read_instances(DATA / f"{split}.jsonl")) == count
