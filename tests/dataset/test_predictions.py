"""Predictions files of others, and what SWE-bench's own reader makes of the same files."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.dataset.predictions import PredictionsError, read_predictions

RECORDS = [
    {"instance_id": "a__b-1", "model_name_or_path": "peer", "model_patch": "diff --git a/x b/x\n"},
    {"instance_id": "a__b-2", "model_name_or_path": "peer", "model_patch": "line\u2028separator and form\x0cfeed\n"},
    {"instance_id": "a__b-3", "model_name_or_path": "peer", "model_patch": None},
]
FORMS = {
    "preds.json": lambda records: json.dumps({record["instance_id"]: record for record in records}),
    "list.json": json.dumps,
    "all_preds.jsonl": lambda records: "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records),
}


def written(tmp_path, name, records):
    path = tmp_path / name
    path.write_text(FORMS[name](records), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", FORMS)
def test_each_form_gives_the_same_patches(tmp_path, name):
    predictions = read_predictions(written(tmp_path, name, RECORDS))
    assert predictions.patches == {record["instance_id"]: record["model_patch"] or "" for record in RECORDS}
    assert predictions.model_name == "peer"


@pytest.mark.parametrize("name", FORMS)
def test_the_form_is_known_by_the_content(tmp_path, name):
    path = tmp_path / "predictions.txt"
    path.write_text("\ufeff" + FORMS[name](RECORDS), encoding="utf-8")
    assert len(read_predictions(path).patches) == 3


@pytest.mark.parametrize("name", FORMS)
def test_swebench_reads_the_same_files_alike(tmp_path, name):
    reader = pytest.importorskip("swebench.harness.utils")
    path = written(tmp_path, name, RECORDS)
    theirs = reader.get_predictions_from_file(str(path), "unused", "unused")
    assert {row["instance_id"]: row["model_patch"] or "" for row in theirs} == read_predictions(path).patches


def test_entries_need_no_id_of_their_own(tmp_path):
    path = tmp_path / "preds.json"
    path.write_text(json.dumps({"a__b-1": {"model_patch": "x"}}))
    assert read_predictions(path).patches == {"a__b-1": "x"}


def test_a_single_record_is_a_file_of_one_line(tmp_path):
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps(RECORDS[0]))
    assert list(read_predictions(path).patches) == ["a__b-1"]


def test_patches_of_several_models_have_no_name_of_one(tmp_path):
    records = [RECORDS[0], RECORDS[1] | {"model_name_or_path": "other"}]
    assert read_predictions(written(tmp_path, "list.json", records)).model_name == "predictions"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no prediction"),
        ("[]", "holds no prediction"),
        ("diff --git a/x b/x", "line 1: this is not JSON"),
        ("[" * 100_000, "line 1: this is not JSON"),
        ("[1]", "record 1: a prediction is an object with instance_id and model_patch, not int"),
        ('{"a": "diff"}', "entry a: a prediction is an object with instance_id and model_patch, not str"),
        (
            '[{"instance_id": "a", "patch": "x"}]',
            "model_patch has to be text. The record has these columns: instance_id",
        ),
        ('[{"instance_id": "", "model_patch": "x"}]', "instance_id has to be text"),
        ('[{"instance_id": 7, "model_patch": "x"}]', "instance_id has to be text"),
        (json.dumps([RECORDS[0], RECORDS[0]]), "record 2: a__b-1 has a patch in .*record 1 already"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, text, words):
    path = tmp_path / "preds.json"
    path.write_text(text)
    with pytest.raises(PredictionsError, match=words):
        read_predictions(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(PredictionsError, match=r"agent.predictions=.*nothing.json cannot be read: No such file"):
        read_predictions(tmp_path / "nothing.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(PredictionsError, match="it is not UTF-8 text"):
        read_predictions(tmp_path / "bytes.json")


@given(patches=st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=40), min_size=1, max_size=5))
def test_any_text_survives(tmp_path_factory, patches):
    records = [
        {"instance_id": name, "model_patch": patch, "model_name_or_path": "m"} for name, patch in patches.items()
    ]
    folder = tmp_path_factory.mktemp("predictions")
    for name in FORMS:
        assert read_predictions(written(folder, name, records)).patches == patches
