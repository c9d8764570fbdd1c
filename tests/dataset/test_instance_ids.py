"""Ids that would lead out of a folder, and ids that are longer than a name may be: every reader, every place."""

import json
from dataclasses import replace

import pytest

from swe_rl.config.schema import EnvConfig
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.dataset.records import read_instances
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.foreign import ForeignEnv
from swe_rl.env.harbor.env import HarborEnv
from swe_rl.env.kodcode.env import KodcodeEnv
from swe_rl.env.kodcode.read import read_split as read_functions
from swe_rl.env.source_build.build import tree_folder
from swe_rl.env.swe.r2e_gym import to_instance as r2e_instance
from swe_rl.env.swe.read import read_split
from swe_rl.env.swe.swe_smith import to_instance as smith_instance
from swe_rl.extension.find import Foreign
from swe_rl.files.names import folder_name
from swe_rl.logger.folder import RunFolder

RECORD = {
    **{"instance_id": "a__b-1", "repo": "a/b", "base_commit": "c" * 40, "problem_statement": "It fails."},
    **{"patch": "p", "test_patch": "t", "FAIL_TO_PASS": ["t.py::test"], "PASS_TO_PASS": [], "eval_script": "true"},
}
NO_NAMES = (
    "",
    " ",
    ".",
    "..",
    "../../x",
    "a/b",
    "/etc/x",
    "a\\b",
    "a\0b",
    "a\nb",
    "a\x1b[1mb",
    "x ",
    "a\u2028b",
    "\ud800",
)
NAMES = ("plain", "a b", "ñandú__x-1", "...", "-rf", ".git", "a" * 250, "日" * 90, "a%2e%2e%2fb")


def rows_file(tmp_path, records, ending="jsonl"):
    path = tmp_path / f"train.{ending}"
    if ending == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif ending == "json":
        path.write_text(json.dumps(records))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(records), path)
    return path


@pytest.mark.parametrize("name", NO_NAMES)
def test_no_id_is_a_path(tmp_path, name):
    """Said with the place of the row."""
    path = rows_file(tmp_path, [RECORD, RECORD | {"instance_id": name}])
    config = EnvConfig(name="jsonl", dataset=str(path), split="train")
    for read in (lambda: read_instances(path), lambda: read_split(config, "train")):
        with pytest.raises(InstanceError, match=r"train\.jsonl, line 2: the instance id "):
            read()
    smith = RECORD | {"instance_id": name, "repo": "swesmith/a__b.0123abcd"}
    if name.strip():  # else its column is missing
        with pytest.raises(InstanceError, match="row 7: the instance id"):
            smith_instance(smith, "row 7")
    r2e = {"repo_name": name or "/", "commit_hash": "c" * 40, "docker_image": "i", "problem_statement": "s"}
    if "/" in name:
        with pytest.raises(InstanceError, match="row 8: the instance id"):
            r2e_instance(r2e | {"parsed_commit_content": "{}", "expected_output_json": "{}"}, "row 8")
    with pytest.raises(InstanceError, match="an instance of 'a/b': the instance id"):
        replace(Instance.from_record(RECORD), instance_id=name)  # of a plug-in


@pytest.mark.parametrize("ending", ["json", "parquet"])
def test_other_files_say_their_rows_as_well(tmp_path, ending):
    path = rows_file(tmp_path, [RECORD, RECORD | {"instance_id": "../x"}], ending)
    with pytest.raises(InstanceError, match=rf"train\.{ending}, (record 2|row 1): the instance id '\.\./x'"):
        read_instances(path)


@pytest.mark.parametrize(("second", "how"), [("a__b-1", "is there twice"), ("A__B-1", "differs from 'a__b-1' in case")])
def test_two_rows_never_have_one_name(tmp_path, second, how):
    path = rows_file(tmp_path, [RECORD, RECORD | {"instance_id": "other"}, RECORD | {"instance_id": second}])
    config = EnvConfig(name="jsonl", dataset=str(path), split="train")
    words = rf"train\.jsonl, line 3: instance '{second}' {how}.*the first is in .*train\.jsonl, line 1"
    for read in (lambda: read_instances(path), lambda: read_split(config, "train")):
        with pytest.raises(InstanceError, match=words):
            read()
    row = {"question": "q", "solution": "def f(): pass", "test": "def test_f(): pass"}
    functions = rows_file(tmp_path, [row | {"question_id": name} for name in ("a__b-1", second)])
    with pytest.raises(InstanceError, match=rf"line 2: instance '{second}' {how}"):
        read_functions(EnvConfig(name="kodcode", dataset=str(functions)), "train")


def test_an_environment_of_somebody_elses_is_held_to_it():
    class Theirs:
        names = ("a", "A")

        def instances(self, split):
            return [replace(Instance.from_record(RECORD), instance_id=name) for name in self.names]

    theirs = Theirs()
    env = ForeignEnv(theirs, Foreign("env", "theirs", "their.Env", None))
    with pytest.raises(InstanceError, match=r"instances\('train'\), number 1: instance 'A' differs from 'a' in case"):
        env.instances("train")
    theirs.names = ("a", "../b")
    with pytest.raises(InstanceError, match=r"'\.\./b' holds a separator of paths"):
        env.instances("train")


def test_a_folder_of_harbor_with_an_odd_name_is_said(tmp_path):
    task = tmp_path / "tasks" / "train" / "a\nb"
    task.mkdir(parents=True)
    (task / "task.toml").write_text("")
    env = HarborEnv(EnvConfig(name="harbor", dataset=str(tmp_path / "tasks"), split="train"), tmp_path / "cache")
    with pytest.raises(InstanceError, match=r"cannot be printed"):
        env.instances("train")


@pytest.mark.parametrize("name", (*NAMES, *NO_NAMES))
def test_no_folder_of_an_id_is_outside(tmp_path, name):
    """Also of an id that no reader lets through: records of a run are read again."""
    made = folder_name(name)
    assert made == name or made.rpartition("-")[2].isalnum()
    (tmp_path / made).mkdir()
    assert [path.name for path in tmp_path.iterdir()] == [made]
    file = RunFolder(tmp_path / "run").attempt_file(name, 12, "grade.log")
    assert file.resolve().is_relative_to((tmp_path / "run" / "trajs").resolve()) and file.parent.parent.name == "trajs"
    file.parent.mkdir(parents=True)
    file.write_text("log")


def test_different_ids_have_different_folders():
    names = [*NAMES, *NO_NAMES, "a" * 249, "a" * 251, "日" * 91, "a_b", "a/b/"]
    assert len({folder_name(name) for name in names}) == len(names)


@pytest.mark.parametrize("name", ["x" * 250, "日本" * 60, "sp ace ñ"])
def test_the_longest_ids_have_workspaces(tmp_path, name):
    bugs = BugsEnv(EnvConfig(), tmp_path / "cache")
    instance = replace(bugs.instances("train")[0], instance_id=name)
    assert (bugs.workspace(instance).path / ".git").is_dir()
    row = {"question": "q", "solution": "def f(): pass", "test": "def test_f(): pass", "question_id": f"{name}_1"}
    functions = rows_file(tmp_path, [row])
    kodcode = KodcodeEnv(EnvConfig(name="kodcode", dataset=str(functions), split="train"), tmp_path / "cache")
    assert (kodcode.workspace(kodcode.instances("train")[0]).path / "solution.py").is_file()


def test_a_base_commit_that_is_a_path_leads_nowhere_either(tmp_path):
    bugs = BugsEnv(EnvConfig(), tmp_path / "cache" / "deep")
    instance = replace(bugs.instances("train")[0], base_commit="../../../../escaped")
    with pytest.raises(InstanceError):
        bugs.workspace(instance)
    assert {path.name for path in tmp_path.iterdir()} == {"cache"}


def test_trees_of_sources_are_below_their_folder(tmp_path):
    source = {"tree": str(tmp_path), "python": "3.11"}
    instance = Instance.from_record(RECORD | {"instance_id": "y" * 250, "source": source})

    class Origin:
        key = "k" * 20

    folder = tree_folder(instance, Origin(), tmp_path)
    assert folder.parent == tmp_path / "trees" and len(folder.name) < 200
