"""SWE-bench's record format, read both ways that it is written."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.dataset.records import read_instances, select_instances, write_instances

RECORD = {
    "instance_id": "a__b-1",
    "repo": "a/b",
    "base_commit": "abc",
    "problem_statement": "It fails.",
    "patch": "diff",
    "test_patch": "diff",
    "FAIL_TO_PASS": ["t::x"],
    "PASS_TO_PASS": '["t::y", "t::z"]',
    "version": "1.0",
}


def test_lists_and_json_strings_are_both_read():
    one = Instance.from_record(RECORD)
    assert one.fail_to_pass == ("t::x",) and one.pass_to_pass == ("t::y", "t::z")


@given(st.text(), st.lists(st.text(min_size=1), max_size=4))
def test_a_record_survives_the_round_trip(statement, tests):
    one = Instance.from_record(RECORD | {"problem_statement": statement, "FAIL_TO_PASS": tests})
    assert Instance.from_record(json.loads(json.dumps(one.to_record()))) == one


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"patch": None}, "'patch' is missing"),
        ({"FAIL_TO_PASS": "not json"}, "not a JSON list"),
        ({"PASS_TO_PASS": [1]}, "list of test ids"),
    ],
)
def test_a_bad_column_is_named(change, words):
    with pytest.raises(InstanceError, match=words):
        Instance.from_record(RECORD | change, "file, line 3")


def test_files(tmp_path):
    path = tmp_path / "one.jsonl"
    write_instances(path, [Instance.from_record(RECORD)])
    assert read_instances(path) == [Instance.from_record(RECORD)]
    path.write_text(path.read_text() * 2)
    with pytest.raises(InstanceError, match="there twice"):
        read_instances(path)
    path.write_text("{}\nnonsense\n")
    with pytest.raises(InstanceError, match="line 1"):
        read_instances(path)
    with pytest.raises(InstanceError, match=r"env\.dataset=.*cannot be read"):
        read_instances(tmp_path / "none.jsonl")


def test_selection(tmp_path):
    instances = [Instance.from_record(RECORD | {"instance_id": name}) for name in ("a", "b", "c")]
    listing = tmp_path / "list.txt"
    listing.write_text("# chosen\nc\na  # first\n")
    assert [one.instance_id for one in select_instances(instances, str(listing))] == ["c", "a"]
    listing.write_text("d\n")
    with pytest.raises(InstanceError, match="d is not among the 3"):
        select_instances(instances, str(listing))
    with pytest.raises(InstanceError, match=r"env\.instances=.*cannot be read"):
        select_instances(instances, str(tmp_path / "missing.txt"))


def test_a_pattern_selects_in_the_files_order():
    names = ("django__django-2", "flask__flask-1", "django__django-1")
    found = [Instance.from_record(RECORD | {"instance_id": name}) for name in names]
    chosen = [one.instance_id for one in select_instances(found, "django__django-*")]
    assert chosen == ["django__django-2", "django__django-1"]
    with pytest.raises(InstanceError, match=r"none is among the 3 instances \(such as django"):
        select_instances(found, "sympy__*")


def test_the_real_sample_reads(pytestconfig):
    sample = pytestconfig.rootpath.parent / "shared" / "data" / "swebench_verified_sample.jsonl"
    if not sample.is_file():
        pytest.skip("the sample of real instances is not beside this checkout")
    instances = read_instances(sample)
    assert len(instances) == 8 and all(one.fail_to_pass for one in instances)
