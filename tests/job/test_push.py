"""A run on the hub: what is pushed, where, with which token, and what is refused."""

import json
import shutil
from dataclasses import replace

import pytest

from swe_rl.agent.agent import Turn
from swe_rl.config.compose import compose
from swe_rl.errors import UserError
from swe_rl.imitation.formats import read_record
from swe_rl.job import export
from swe_rl.logger.folder import RunFolder, RunState, StatusWriter
from swe_rl.rollout.trajectory import Status, Trajectory
from swe_rl.run.push import PushError, hub_address
from tests.support.fake_hub import TOKEN, serve_hub


def attempt(number=0, *, split="train", status=Status.resolved, **values):
    turns = [
        Turn(index=0, message="I look.\n```bash\nls\n```", command="ls", observation="a.py", exit_code=0),
        Turn(index=1, message="It is done.", command=None, observation=None),
    ]
    group = f"{split}.1.fix-{number}"
    given = {"patch": "diff", "tests": {f"t{number}": True}, "turns": turns, "sampled_tokens": 7}
    return Trajectory(
        trajectory_id=f"{group}.0.0",
        instance_id=f"fix-{number}",
        group_id=group,
        split=split,
        step=1,
        sample=0,
        attempt=0,
        status=status,
        reward=1.0,
        trained=True,
        in_baseline=True,
        **given | values,
    )


def write_attempts(folder, name, attempts):
    folder.trajectories_folder.mkdir(exist_ok=True)
    lines = [json.dumps(it.to_record()) for it in attempts]
    (folder.trajectories_folder / name).write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "my_run")
    folder.path.mkdir()
    folder.config_yaml.write_text("agent: {name: bash}\nmodel: {name: tiny, path: 'builtin:tiny'}\nenv: {name: bugs}\n")
    StatusWriter(folder.status_json, config_hash="a", job="train").finish(RunState.done)
    broken = attempt(2, status=Status.infra_error)
    write_attempts(folder, "step_000001.jsonl", [attempt(0), attempt(1, tests={"other": False}), broken])
    return folder


@pytest.fixture
def hub(monkeypatch):
    with serve_hub() as served:
        monkeypatch.setenv("HF_ENDPOINT", served.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        # The uploader in Rust speaks to other servers than the hub's API, which has the older protocol as well.
        for module in ("_commit_api", "hf_api"):
            monkeypatch.setattr(f"huggingface_hub.{module}.is_xet_available", lambda: False)
        yield served


def config_of(**job):
    config = compose(["job=export", "trainer.num_threads=1"]).config
    return replace(config, job=replace(config.job, **job))


def push(**job):
    return export.run(config_of(push="org/name", **job), None)


def rows_of(hub, path, repository="datasets/org/name"):
    return [json.loads(line) for line in hub.repositories[repository][path].splitlines()]


def test_the_attempts_of_a_run_become_a_data_set(run, hub, capsys):
    assert push(runs=str(run.path)) == 0
    assert f"pushed: {run.exports}/trajectories to {hub.address}/datasets/org/name" in capsys.readouterr().out
    assert hub.private == {"datasets/org/name": True}
    rows = rows_of(hub, "my_run/trajectories/train.jsonl")
    assert [(row["instance_id"], row["status"], row["tests"]) for row in rows] == [
        ("fix-0", "resolved", [{"name": "t0", "passed": True}]),
        ("fix-1", "resolved", [{"name": "other", "passed": False}]),
    ], "what infrastructure broke is left out"
    assert rows[0]["turns"][0]["command"] == "ls"
    card = hub.repositories["datasets/org/name"]["README.md"].decode()
    assert "| train | 2 |" in card and "\n1 attempts that infrastructure broke" in card


def test_the_library_of_data_sets_loads_what_was_pushed(run, hub, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    write_attempts(run, "eval_000001.jsonl", [attempt(5, split="eval-heldout", cheating={"peek": 2})])
    push(runs=str(run.path), dry_run=True)
    loaded = datasets.load_dataset(str(run.exports / "trajectories"), cache_dir=str(tmp_path / "cache"))
    assert {part: len(loaded[part]) for part in loaded} == {"train": 2, "evaluation": 1}
    assert loaded["evaluation"][0]["cheating"] == [{"kind": "peek", "count": 2}]
    lines = (run.exports / "trajectories" / "my_run" / "trajectories" / "train.jsonl").read_text().splitlines()
    assert list(loaded["train"]) == [json.loads(line) for line in lines]
    assert not hub.repositories


def test_a_run_of_another_name_is_written_anew(run, hub, tmp_path):
    push(runs=str(run.path), dry_run=True)
    (tmp_path / "my_run").rename(tmp_path / "best")
    push(runs=str(tmp_path / "best"))
    assert {path.partition("/")[0] for path in hub.repositories["datasets/org/name"]} == {"README.md", "best"}


def copied_run(run, path, started):
    """Another run with the same files."""
    shutil.copytree(run.path, path)
    second = RunFolder(path)
    status = json.loads(second.status_json.read_text())
    second.status_json.write_text(json.dumps(status | {"started": started}))
    return second


def test_a_run_that_was_renamed_is_not_there_twice(run, hub, tmp_path):
    push(runs=str(run.path))
    files = set(hub.repositories["datasets/org/name"])
    run.path.rename(tmp_path / "best")
    push(runs=str(tmp_path / "best"))
    assert set(hub.repositories["datasets/org/name"]) == files


def test_two_runs_whose_folders_have_one_name_are_both_there(run, hub, tmp_path):
    """As the first jobs of two sweeps: no attempt of the one takes the place of the other's."""
    first = copied_run(run, tmp_path / "monday" / "0", 1.5)
    second = copied_run(run, tmp_path / "tuesday" / "0", 2.5)
    write_attempts(second, "step_000001.jsonl", [attempt(7)])
    for each in (first, second, first):
        push(runs=str(each.path))
    pushed = [name for name in hub.repositories["datasets/org/name"] if name.endswith("trajectories/train.jsonl")]
    assert len(pushed) == 2
    rows = [row["instance_id"] for name in pushed for row in rows_of(hub, name)]
    assert sorted(rows) == ["fix-0", "fix-1", "fix-7"]


def test_a_repository_of_two_runs_has_the_parts_of_both(run, hub, tmp_path):
    datasets = pytest.importorskip("datasets")
    push(runs=str(run.path))
    second = copied_run(run, tmp_path / "second", 2.5)
    second.trajectories(1).unlink()
    write_attempts(second, "eval_000001.jsonl", [attempt(5, split="eval-heldout")])
    push(runs=str(second.path))
    for name, content in hub.repositories["datasets/org/name"].items():
        file = tmp_path / "clone" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    loaded = datasets.load_dataset(str(tmp_path / "clone"), cache_dir=str(tmp_path / "cache"))
    assert {part: len(loaded[part]) for part in loaded} == {"train": 2, "evaluation": 1}
    card = (tmp_path / "clone" / "README.md").read_text()
    assert "| evaluation | 1 |" in card and "also has attempts of `my_run` (train)." in card


def test_an_attempt_that_another_replaced_is_left_out(run, hub):
    again = replace(attempt(0), attempt=1, trajectory_id="train.1.fix-0.0.1")
    write_attempts(run, "step_000001.jsonl", [attempt(0, status=Status.agent_crashed), again])
    push(runs=str(run.path))
    assert [row["status"] for row in rows_of(hub, "my_run/trajectories/train.jsonl")] == ["resolved"]


def test_published_atif_is_read_by_the_imitation(run, hub):
    own = run.attempt_file("fix-0", 0, "atif.json")
    own.parent.mkdir(parents=True)
    written = {"schema_version": "ATIF-v1.7", "session_id": attempt(0).trajectory_id, "steps": [], "mark": 1}
    own.write_text(json.dumps(written))
    push(runs=str(run.path))
    first, second = rows_of(hub, "my_run/atif/train.jsonl")
    assert first == written, "the file that an evaluation wrote has the prompt"
    read = read_record(second, "line 2")
    assert [message["role"] for message in read.messages] == ["assistant", "user", "assistant"]


def test_what_is_there_stays_and_what_did_not_change_is_not_sent_again(run, hub):
    hub.repositories["datasets/org/name"] = {"other/data.jsonl": b"theirs"}
    push(runs=str(run.path))
    push(runs=str(run.path))
    assert hub.repositories["datasets/org/name"]["other/data.jsonl"] == b"theirs"
    assert len(hub.commits) == 1, "the second push changes nothing"


def test_a_dry_run_writes_and_pushes_nothing(run, hub, capsys, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    assert push(runs=str(run.path), dry_run=True) == 0
    said = capsys.readouterr().out
    assert f"{run.exports}/trajectories is for {hub.address}/datasets/org/name (4 files" in said
    assert "  my_run/atif/train.jsonl\n" in said and "nothing was pushed" in said
    assert (run.exports / "trajectories" / "README.md").is_file()
    assert not hub.repositories and not hub.commits


def test_the_token_is_in_no_file_and_no_message(run, hub, capsys):
    write_attempts(run, "step_000001.jsonl", [attempt(0, patch=f"+key = '{TOKEN}'")])
    push(runs=str(run.path))
    files = [path for path in run.path.rglob("*") if path.parent != run.trajectories_folder and path.is_file()]
    assert len(files) > 3 and not any(TOKEN.encode() in path.read_bytes() for path in files)
    assert rows_of(hub, "my_run/trajectories/train.jsonl")[0]["patch"] == "+key = '***'"
    hub.refused = (403, {"error": f"the token {TOKEN} may not write"})
    with pytest.raises(PushError) as raised:
        push(runs=str(run.path))
    assert "datasets/org/name did not take" in str(raised.value) and "***" in str(raised.value)
    assert TOKEN not in str(raised.value) + capsys.readouterr().out


@pytest.mark.parametrize("state", [RunState.running, RunState.interrupted, RunState.failed, RunState.requeued])
def test_a_run_that_is_not_over_is_refused(run, hub, state):
    StatusWriter(run.status_json, config_hash="a", step=3).finish(state)
    with pytest.raises(UserError, match=f"is not over: its status is {state.value}, after step 3"):
        push(runs=str(run.path))
    assert not run.exports.exists() and not hub.repositories


@pytest.mark.parametrize("link", ["best", "all/step_000001"])
def test_a_run_that_is_not_over_is_refused_by_way_of_a_link(run, hub, tmp_path, link):
    checkpoint = run.checkpoints / "step_000001"
    checkpoint.mkdir(parents=True)
    for name in ("manifest.json", "state.json"):
        (checkpoint / name).write_text("{}")
    (tmp_path / "best").symlink_to(checkpoint)
    (tmp_path / "all").symlink_to(run.checkpoints)
    StatusWriter(run.status_json, config_hash="a", step=3).finish(RunState.interrupted)
    with pytest.raises(UserError, match="is not over: its status is interrupted"):
        push(checkpoint=str(tmp_path / link))
    assert not run.exports.exists() and not hub.repositories


def test_a_run_that_a_process_holds_is_refused(run, hub):
    run.lock.touch()
    with RunFolder(run.path), pytest.raises(UserError, match="a process works on it"):
        push(runs=str(run.path))


def test_what_is_no_run_is_refused(run, hub, tmp_path):
    with pytest.raises(UserError, match=r"is no run's folder: it has no status\.json"):
        push(runs=str(tmp_path))
    run.status_json.write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        push(runs=str(run.path))


def test_a_run_without_attempts_is_refused(run, hub):
    write_attempts(run, "step_000001.jsonl", [])
    with pytest.raises(UserError, match="has no attempt that can be published"):
        push(runs=str(run.path))


def test_a_line_that_is_no_attempt_is_named(run, hub):
    (run.trajectories_folder / "step_000002.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(UserError, match=r"step_000002\.jsonl, line 1: this is no attempt"):
        push(runs=str(run.path))


def test_a_checkpoints_model_and_its_runs_attempts_are_two_repositories(run, hub, monkeypatch, capsys):
    checkpoint = run.checkpoints / "step_000001"
    checkpoint.mkdir(parents=True)

    def write_model(found, target, model, dtype, *, key):
        target.mkdir(parents=True)
        (target / "config.json").write_text("{}")
        (target / "README.md").write_text("---\ntags: [a]\n---\n")
        (target / "model.safetensors").write_bytes(bytes(300_000))

    monkeypatch.setattr(export, "_require_checkpoint", lambda _: checkpoint)
    monkeypatch.setattr(export, "_write_model", write_model)
    (checkpoint / "manifest.json").write_text("{}")
    push(checkpoint=str(run.path))
    assert set(hub.repositories) == {"models/org/name", "datasets/org/name-trajectories"}
    assert hub.repositories["models/org/name"]["model.safetensors"] == bytes(300_000)
    assert set(hub.repositories["models/org/name"]) == {"config.json", "README.md", "model.safetensors"}
    assert "pushed: " in capsys.readouterr().out


WHOLE = {"model.safetensors"}
IN_PARTS = {"model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}


@pytest.mark.parametrize(("before", "after"), [(WHOLE, IN_PARTS), (IN_PARTS, WHOLE)])
def test_a_model_replaces_the_earlier_one_whose_files_have_other_names(run, hub, monkeypatch, capsys, before, after):
    """As float32 after bfloat16: a reader takes a whole `model.safetensors` before any parts."""
    checkpoint = run.checkpoints / "step_000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")

    def write_model(found, target, model, dtype, *, key):
        target.mkdir(parents=True)
        for name in ("config.json", *after):
            (target / name).write_text("{}")

    monkeypatch.setattr(export, "_require_checkpoint", lambda _: checkpoint)
    monkeypatch.setattr(export, "_write_model", write_model)
    theirs = {"notes.txt", "other/model.safetensors", "tokenizer.json", ".gitattributes"}
    earlier = {*before, *theirs, "adapter/adapter_config.json", "chat_template.jinja", "config.json"}
    hub.repositories["models/org/name"] = dict.fromkeys(earlier, b"old")
    push(checkpoint=str(run.path))
    push(checkpoint=str(run.path))
    assert set(hub.repositories["models/org/name"]) == {*after, *theirs, "config.json"}
    assert len(hub.commits) == 2, "one for the model, one for the attempts"
    said = capsys.readouterr().out
    assert said.count("as of an earlier model: ") == 1 and "chat_template.jinja" in said


@pytest.mark.parametrize("base", ["/home/me/models/base", "models/base", "org/base"])
def test_no_path_of_this_machine_is_in_a_pushed_model(run, hub, monkeypatch, base):
    """The adapter names its base, and libraries note where they loaded a model. What is on the hub stays named."""
    checkpoint = run.checkpoints / "step_000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    run.events_jsonl.write_text('{"time": 1.0, "event": "started", "hub": ["org/base"]}\n')

    def write_model(found, target, model, dtype, *, key):
        (target / "adapter").mkdir(parents=True)
        (target / "adapter" / "adapter_config.json").write_text(json.dumps({"r": 8, "base_model_name_or_path": base}))
        (target / "config.json").write_text('{"_name_or_path": "/scratch/me/base", "vocab_size": 7}')
        (target / "tokenizer_config.json").write_text('{"name_or_path": "org/tokenizer"}')

    monkeypatch.setattr(export, "_require_checkpoint", lambda _: checkpoint)
    monkeypatch.setattr(export, "_write_model", write_model)
    push(checkpoint=str(run.path))
    pushed = {name: json.loads(data) for name, data in hub.repositories["models/org/name"].items()}
    named = {"base_model_name_or_path": base} if base == "org/base" else {}
    assert pushed["adapter/adapter_config.json"] == {"r": 8, **named}
    assert pushed["config.json"] == {"vocab_size": 7}
    assert pushed["tokenizer_config.json"] == {"name_or_path": "org/tokenizer"}


def test_without_a_token_nothing_is_asked(run, hub, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match="set HF_TOKEN in the environment"):
        push(runs=str(run.path))
    assert not hub.repositories


def test_the_hubs_address_is_that_of_its_client():
    assert hub_address({}) == "https://huggingface.co"
    assert hub_address({"HF_ENDPOINT": "http://mirror/"}) == "http://mirror"
