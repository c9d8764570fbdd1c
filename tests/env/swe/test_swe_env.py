"""What an environment of real repositories hands out: chosen instances, kept apart, prepared or not."""

import json
from types import SimpleNamespace

import pytest

from swe_rl.check.rules import data as rules_data
from swe_rl.config.choices import GradingKind, Keep, SandboxKind
from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import InstanceError, Source
from swe_rl.env.make import make_env
from swe_rl.env.swe.prepared import PreparedIdentity, manifest_of, prepared_instances, read_manifest, write_prepared
from swe_rl.env.swe.read import read_split, to_instance
from swe_rl.env.swe.splits import shared_instances


def record(name, **columns):
    return {
        "instance_id": name,
        "repo": "a/b",
        "base_commit": name.ljust(40, "0"),
        "problem_statement": "It fails.",
        "patch": "diff --git a/x b/x\n",
        "test_patch": "diff --git a/tests/t.py b/tests/t.py\n--- a/tests/t.py\n+++ b/tests/t.py\n@@ -1 +1 @@\n-a\n+b\n",
        "FAIL_TO_PASS": ["tests/t.py::x"],
        "PASS_TO_PASS": [],
        "version": "1.0",
    } | columns


def write(path, *records):
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return str(path)


@pytest.fixture
def dataset(tmp_path):
    return write(tmp_path / "mine.jsonl", *(record(name) for name in "abcdef"))


def config(dataset, **keys):
    values = {"name": "jsonl", "dataset": dataset, "split": "train[:4]", "eval_split": "train[4:]"} | keys
    return EnvConfig(**values)


def env(tmp_path, made, sandbox=SandboxKind.docker):
    return make_env(made, tmp_path / "cache", sandbox)


def ids(instances):
    return [one.instance_id for one in instances]


def test_slices_and_choices(tmp_path, dataset):
    one = env(tmp_path, config(dataset, instance_ids=("c", "a")))
    assert ids(one.instances("train[:4]")) == ["c", "a"] and ids(one.instances("train[4:]")) == ["e", "f"]
    assert ids(env(tmp_path, config(dataset, instances="*d*")).instances("train[:4]")) == ["d"]


@pytest.mark.parametrize("keys", [{"instances": "*z*"}, {"instance_ids": ("e", "z")}, {"instance_ids": ("z",)}])
@pytest.mark.parametrize("split", ["train[:4]", "train[4:]"])
def test_a_choice_that_means_no_instance_is_refused_wherever_it_is_read(tmp_path, dataset, split, keys):
    with pytest.raises(InstanceError, match=r"among the [42] instances \(such as (a and b|e and f)\)"):
        env(tmp_path, config(dataset, **keys)).instances(split)


def test_a_choice_of_what_is_trained_on_leaves_all_that_is_evaluated(tmp_path, dataset):
    for keys in ({"instances": "[ab]*"}, {"instance_ids": ("b", "a")}):
        assert ids(env(tmp_path, config(dataset, **keys)).instances("train[4:]")) == ["e", "f"]


def test_splits_that_meet_are_refused_with_the_instances(tmp_path, dataset):
    one = env(tmp_path, config(dataset, eval_split="train[3:]"))
    one.instances("train[:4]")
    with pytest.raises(InstanceError, match=r"1 instances are in both train\[:4\] and train\[3:\] .*: d;"):
        one.instances("train[3:]")
    same = env(tmp_path, config(dataset, split="train", eval_split="train"))
    assert ids(same.instances("train")) == ids(same.instances("train"))


def test_the_same_issue_under_another_name_is_shared():
    one, other = record("one"), record("two", base_commit=record("one")["base_commit"], repo="A/b")
    read = [to_instance(row, "here") for row in (one, other)]
    assert shared_instances(read[:1], read[1:]) == [("one", "two")]
    assert shared_instances(read[:1], [to_instance(record("three"), "here")]) == []


def test_another_data_set_has_its_own_images(tmp_path, dataset):
    other = write(tmp_path / "other.jsonl", record("x__y-1"))
    made = config(
        dataset,
        split="train",
        eval_split="test",
        eval_dataset=other,
        image_template="r/train.{instance_id}",
        eval_image_template="r/eval.{instance_id_s}",
        grading=GradingKind.eval_script,
    )
    one = env(tmp_path, made)
    assert one.workspace(one.instances("train")[0]).image == "r/train.a"
    assert one.workspace(one.instances("test")[0]).image == "r/eval.x_s_y-1"


@pytest.mark.parametrize(
    ("split", "same"), [("test", "test[0:]"), ("test[:1]", "test[0:1]"), ("test[0:1]", "test[00:1]")]
)
def test_splits_of_one_name_are_told_apart_as_the_message_says(tmp_path, dataset, split, same):
    other = write(tmp_path / "other.jsonl", record("x__y-1"))
    with pytest.raises(InstanceError, match="of two data sets") as said:
        env(tmp_path, config(dataset, split=split, eval_split=split, eval_dataset=other)).instances(split)
    assert f"'env.eval_split=\"{same}\"'" in str(said.value)
    found = env(tmp_path, config(dataset, split=split, eval_split=same, eval_dataset=other)).instances(same)
    assert [one.instance_id for one in found] == ["x__y-1"]


def test_older_rows_get_script_parser_and_image(tmp_path, dataset):
    one = env(tmp_path, config(dataset, grading=GradingKind.swebench)).instances("train[:4]")[0]
    assert one.image.startswith("swebench/sweb.eval.x86_64.") and "tests/t.py" in one.eval_script and one.log_parser


def test_without_an_image_a_container_cannot_start(tmp_path, dataset):
    one = env(tmp_path, config(dataset, grading=GradingKind.eval_script))
    with pytest.raises(InstanceError, match="a has no image"):
        one.workspace(one.instances("train[:4]")[0])


def test_how_many_the_split_has_without_its_slice(tmp_path, dataset):
    one = env(tmp_path, config(dataset, instance_ids=("c", "a")))
    assert one.split_instances("train[:4]") == 6 and len(one.instances("train[:4]")) == 2
    made = config(dataset)
    identity = PreparedIdentity.of(made, "train[:4]")
    read = read_split(made, "train[:4]")
    facts = {"revision": read.revision, "source_rows": read.source_rows, "split_rows": read.split_rows}
    write_prepared(tmp_path / "cache", identity, read.instances, facts)
    assert prepared_instances(made, "train[:4]", tmp_path / "cache") is not None
    assert env(tmp_path, made).split_instances("train[:4]") == 6


def test_make_env_reads_every_kind(tmp_path, dataset):
    assert ids(make_env(config(dataset), tmp_path, SandboxKind.docker).instances("train[:4]")) == list("abcd")


def test_what_nobody_could_solve_is_left_out_and_counted(tmp_path):
    rows = [
        record("a"),
        record("b", problem_statement="  "),
        record("c", FAIL_TO_PASS=[]),
        record("d", PASS_TO_PASS=[f"t::{number}" for number in range(5)]),
    ]
    made = config(write(tmp_path / "mine.jsonl", *rows), split="train", max_tests=5)
    read = read_split(made, "train")
    assert ids(read.instances) == ["a"] and read.source_rows == 4
    assert read.dropped == {
        "an empty problem_statement": ["b"],
        "no FAIL_TO_PASS test": ["c"],
        "more than 5 tests (env.max_tests)": ["d"],
    }
    with pytest.raises(InstanceError, match="no usable instance"):
        read_split(config(write(tmp_path / "none.jsonl", rows[1])), "train")


PROBE = [("a", "resolved"), ("a", "resolved"), ("b", "resolved"), ("b", "unresolved"), ("c", "step_limit")]


@pytest.mark.parametrize(
    ("keep", "left"),
    [((Keep.mixed,), ["b"]), ((Keep.mixed, Keep.unsolved), ["b", "c"]), ((Keep.solved,), ["a"])],
)
def test_a_probe_chooses_by_what_was_solved(tmp_path, dataset, keep, left):
    folder = tmp_path / "run" / "trajectories"
    folder.mkdir(parents=True)
    lines = [
        {"trajectory_id": f"t{n}", "instance_id": name, "status": status} for n, (name, status) in enumerate(PROBE)
    ]
    lines += [{"trajectory_id": "broken", "instance_id": "d", "status": "infra_error"}, {"event": "eval"}]
    (folder / "step_000001.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"trajectory_id": "cut')
    made = config(dataset, probe=str(tmp_path / "run"), keep=keep)
    assert ids(env(tmp_path, made).instances("train[:4]")) == left
    assert ids(env(tmp_path, made).instances("train[4:]")) == ["e", "f"]


def test_a_probe_that_leaves_nothing_says_what_it_found(tmp_path, dataset):
    (tmp_path / "t.jsonl").write_text('{"trajectory_id": "t", "instance_id": "a", "status": "resolved"}\n')
    with pytest.raises(InstanceError, match=r"it judged 1 \(1 solved, 0 mixed, 0 unsolved\)"):
        env(tmp_path, config(dataset, probe=str(tmp_path / "t.jsonl"))).instances("train[:4]")
    with pytest.raises(InstanceError, match="holds no judged trajectory"):
        env(tmp_path, config(dataset, probe=str(tmp_path / "nowhere"))).instances("train[:4]")


class TestPrepared:
    @pytest.fixture(autouse=True)
    def needs_parquet(self):
        pytest.importorskip("pyarrow")

    def prepare(self, tmp_path, made, split="train[:4]"):
        read = read_split(made, split)
        write_prepared(tmp_path, PreparedIdentity.of(made, split), read.instances, {"revision": read.revision})
        return PreparedIdentity.of(made, split).path(tmp_path)

    def test_it_is_used_as_long_as_it_fits(self, tmp_path, dataset):
        made = config(dataset, grading=GradingKind.swebench)
        path = self.prepare(tmp_path, made)
        assert prepared_instances(made, "train[:4]", tmp_path) == read_split(made, "train[:4]").instances
        assert prepared_instances(made, "train[:3]", tmp_path) is None
        assert prepared_instances(config(dataset, max_tests=3), "train[:4]", tmp_path) is None
        manifest = read_manifest(path)
        assert manifest["rows"] == 4 and manifest["repositories"] == {"a/b": 4} and "patch" in manifest["columns"]
        write(tmp_path / "mine.jsonl", record("z"))
        assert prepared_instances(made, "train[:4]", tmp_path) is None

    def test_a_source_comes_back(self, tmp_path):
        source = {"sdist": "b-1.0", "fix": "applies forward", "python": "3.9"}
        made = config(write(tmp_path / "mine.jsonl", record("a", source=source), record("b")))
        self.prepare(tmp_path, made)
        found = prepared_instances(made, "train[:4]", tmp_path)
        assert found[0].source.sdist == "b-1.0" and found[1].source is None

    def test_a_changed_file_is_refused(self, tmp_path, dataset):
        path = self.prepare(tmp_path, config(dataset))
        path.write_bytes(path.read_bytes() + b" ")
        with pytest.raises(InstanceError, match="not the file that its manifest describes"):
            prepared_instances(config(dataset), "train[:4]", tmp_path)

    def test_without_a_manifest_it_is_not_there(self, tmp_path, dataset):
        path = self.prepare(tmp_path, config(dataset))
        manifest_of(path).unlink()
        assert prepared_instances(config(dataset), "train[:4]", tmp_path) is None


@pytest.mark.parametrize("row", [{"source": {"sdist": "a-1"}}, {"repo": "bugs/words"}, {}])
def test_the_check_and_the_environment_agree_on_what_has_a_way(row, tmp_path):
    env = make_env(EnvConfig(name="jsonl", dataset="x.jsonl"), tmp_path, SandboxKind.process)
    source = Source(sdist="a-1", python="3.11") if "source" in row else None
    instance = SimpleNamespace(repo=row.get("repo", "a/b"), source=source)
    assert env.has_a_way(instance) is rules_data._has_a_way({"repo": "a/b"} | row)
