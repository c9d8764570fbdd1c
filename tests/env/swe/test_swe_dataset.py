"""Splits and slices of files, folders and caches; the hub is never asked for what is on this machine."""

import json

import pytest

from swe_rl.dataset.find_rows import Split, load_rows
from swe_rl.dataset.instance import InstanceError


def write(path, names, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"instance_id": name, **columns}) + "\n" for name in names))


def ids(loaded):
    return [row.record["instance_id"] for row in loaded.rows]


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("train", Split("train")),
        ("train[3:]", Split("train", 3)),
        ("test[:40]", Split("test", 0, 40)),
        ("a-b.c[2:4]", Split("a-b.c", 2, 4)),
    ],
)
def test_slices(text, split):
    assert Split.parse(text) == split


@pytest.mark.parametrize("text", ["", "train[", "train[-1:]", "train[1]", "train[:50%]"])
def test_other_slices_are_refused(text):
    with pytest.raises(InstanceError, match="is not a split"):
        Split.parse(text)


def test_a_file_is_every_split_unless_its_rows_say(tmp_path):
    path = tmp_path / "mine.jsonl"
    write(path, "abcd")
    assert ids(load_rows(str(path), "train")) == ids(load_rows(str(path), "heldout")) == list("abcd")
    assert ids(load_rows(str(path), "train[1:3]")) == ["b", "c"]
    path.write_text('{"instance_id": "a", "split": "train"}\n{"instance_id": "b", "split": "test"}\n')
    assert ids(load_rows(str(path), "test")) == ["b"]


def test_a_folder_has_a_file_or_shards_a_split(tmp_path):
    write(tmp_path / "train.jsonl", "ab")
    write(tmp_path / "data" / "test-00001-of-00002.jsonl", "d")
    write(tmp_path / "data" / "test-00000-of-00002.jsonl", "c")
    assert ids(load_rows(str(tmp_path), "train")) == ["a", "b"]
    assert ids(load_rows(str(tmp_path), "test")) == ["c", "d"]
    with pytest.raises(InstanceError, match=r"without a file of the split 'dev'; there is data, train\.jsonl"):
        load_rows(str(tmp_path), "dev")


def test_a_trainer_s_files_name_their_split_at_the_end(tmp_path):
    write(tmp_path / "rl_train.jsonl", "ab")
    write(tmp_path / "rl_test.jsonl", "c")
    assert ids(load_rows(str(tmp_path), "train")) == ["a", "b"]
    assert ids(load_rows(str(tmp_path), "test")) == ["c"]
    with pytest.raises(InstanceError, match="without a file of the split 'dev'"):
        load_rows(str(tmp_path), "dev")


def test_files_that_name_no_split_are_every_split(tmp_path):
    folder = tmp_path / "mine.parquets"
    write(folder / "part-1.jsonl", "c")
    write(folder / "part-0.jsonl", "ab")
    assert ids(load_rows(str(folder), "train")) == ids(load_rows(str(folder), "test")) == ["a", "b", "c"]


def test_the_revision_follows_the_bytes(tmp_path):
    path = tmp_path / "mine.jsonl"
    write(path, "ab")
    first = load_rows(str(path), "train").revision
    assert load_rows(str(path), "train[1:]").revision == first and first.startswith("sha256:")
    write(path, "abc")
    assert load_rows(str(path), "train").revision != first


def test_an_empty_slice_says_how_many_there_are(tmp_path):
    write(tmp_path / "mine.jsonl", "ab")
    with pytest.raises(InstanceError, match=r"train\[5:\] holds no row; there are 2 in train"):
        load_rows(str(tmp_path / "mine.jsonl"), "train[5:]")


def test_a_file_that_is_not_there_is_not_looked_for_on_the_hub(tmp_path):
    with pytest.raises(InstanceError, match=r"env\.eval_dataset=.*is not there"):
        load_rows(str(tmp_path / "none.parquet"), "train", key="env.eval_dataset")


def test_what_datasets_saved_is_read_and_the_hub_fails_in_words(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    saved = datasets.DatasetDict({"test": datasets.Dataset.from_list([{"instance_id": "a"}, {"instance_id": "b"}])})
    saved.save_to_disk(str(tmp_path / "saved"))
    loaded = load_rows(str(tmp_path / "saved"), "test[1:]")
    assert ids(loaded) == ["b"] and loaded.rows[0].where.endswith("saved[test], row 1")
    with pytest.raises(InstanceError, match="train cannot be read"):
        load_rows(str(tmp_path / "saved"), "train")

    def unreachable(*_, **__):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(InstanceError, match=r"env\.dataset=nobody/nothing.*no route to host.*hf download"):
        load_rows("nobody/nothing", "train")
