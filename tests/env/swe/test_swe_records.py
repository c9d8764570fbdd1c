"""Files in every ending give the same instances; what is wrong in one is said with its place."""

import json

import pytest

from swe_rl.dataset.instance import InstanceError
from swe_rl.dataset.records import read_instances, read_rows, select_instances

RECORD = {
    "instance_id": "a__b-1",
    "repo": "a/b",
    "base_commit": "c" * 40,
    "problem_statement": "It fails.\u2028Always.",
    "patch": "diff",
    "test_patch": "diff",
    "FAIL_TO_PASS": '["t::x"]',
    "PASS_TO_PASS": ["t::y"],
}
SOURCE = {"sdist": "b-1.0", "fix": "applies forward", "python": "3.9"}


def parquet(path, records):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    files.write_table(pyarrow.Table.from_pylist(records), path)


def test_every_ending_reads_the_same(tmp_path):
    records = [RECORD | {"instance_id": f"a__b-{number}"} for number in range(3)]
    (tmp_path / "one.jsonl").write_text("\n".join(json.dumps(record, ensure_ascii=False) for record in records))
    (tmp_path / "two.json").write_text(json.dumps(records))
    (tmp_path / "three.json").write_text(json.dumps({record["instance_id"]: record for record in records}))
    parquet(tmp_path / "four.parquet", records)
    read = [read_instances(tmp_path / name) for name in ("one.jsonl", "two.json", "three.json", "four.parquet")]
    assert read[0] == read[1] == read[2] == read[3]
    assert len(read[0]) == 3 and read[0][0].problem_statement.endswith("Always.")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.json", "{", "not JSON"),
        ("a.json", '"text"', "a list of records"),
        ("a.json", "[1]", "record 1"),
        ("a.parquet", "no parquet", "cannot be read"),
        ("a.jsonl", '{"instance_id": 1}', "line 1: column 'instance_id'"),
        ("a.jsonl", json.dumps(RECORD | {"source": {"sdist": "b-1.0"}}), "line 1: column 'source'"),
        ("a.jsonl", json.dumps(RECORD | {"source": SOURCE | {"fix": "by hand"}}), "fix='by hand'"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path, name, text, words):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_text(text)
    with pytest.raises(InstanceError, match=words):
        read_instances(tmp_path / name)


def test_a_source_survives_and_says_its_way(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(RECORD | {"source": SOURCE}))
    one = read_instances(tmp_path / "a.jsonl")[0]
    assert one.source.sdist == "b-1.0" and not one.source.reverse
    assert one.to_record()["source"] == SOURCE


def test_a_list_of_ids_keeps_its_order_and_names_what_is_missing(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(RECORD | {"instance_id": name}) for name in "abc"))
    instances = read_instances(tmp_path / "a.jsonl")
    assert [one.instance_id for one in select_instances(instances, ("c", "a", "c"))] == ["c", "a"]
    with pytest.raises(InstanceError, match=r"env\.instance_ids: z is not among the 3 instances \(such as a and b\)"):
        select_instances(instances, ["a", "z"])


def test_rows_know_their_line(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n\n" + json.dumps(RECORD) + "\n")
    assert [row.where for row in read_rows(tmp_path / "a.jsonl")] == [f"{tmp_path}/a.jsonl, line 3"]
