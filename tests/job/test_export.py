"""A run or a checkpoint as a model: what is found, what is written, what is refused."""

import errno
import json
import os
import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from swe_rl.check.check import check_config
from swe_rl.config.choices import AdvantageKind, ExportType, JobName
from swe_rl.config.compose import compose
from swe_rl.config.composition.values import config_hash, flatten_config
from swe_rl.config.keys import key_types
from swe_rl.config.known_models import facts_of
from swe_rl.config.schema import AlgoConfig
from swe_rl.errors import UserError
from swe_rl.files.disk import DiskError
from swe_rl.job import export
from swe_rl.logger.folder import RunFolder, RunState, StatusWriter
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.load import load_model, load_tokenizer, model_folder
from swe_rl.report.card import _READ, _SHOWN, model_card, names_on_hub, recorded_hub_names
from swe_rl.run import which_folder
from swe_rl.run.session import open_session
from swe_rl.run.which_folder import choose_folder, earlier_of
from swe_rl.trainer.checkpoint.folder import CorruptCheckpointError
from swe_rl.trainer.critic import attach_value_head
from swe_rl.trainer.rank_trainer import RankTrainer


@pytest.fixture(scope="module")
def config():
    return compose(["trainer.num_threads=1"]).config


@pytest.fixture(scope="module")
def made(config, tmp_path_factory):
    """A run's folder with the checkpoints of two steps, which differ."""
    folder = tmp_path_factory.mktemp("run")
    model = load_model(config.model)
    trainer = RankTrainer(model, config.trainer, config.algo, pad_token_id=0)
    for step in (1, 2):
        with torch.no_grad():
            next(model.parameters()).add_(0.01)
        trainer.save(
            folder / "checkpoints",
            step=step,
            weight_version=step,
            data_order={},
            config=flatten_config(config),
            hash_of_config=config_hash(config),
            keep=2,
        )
    return folder, model


@pytest.fixture
def run_folder(made, tmp_path):
    shutil.copytree(made[0], tmp_path / "run")
    return tmp_path / "run"


def with_job(config, **job):
    return replace(config, job=replace(config.job, **job))


def same_weights(path, model):
    loaded = AutoModelForCausalLM.from_pretrained(path).state_dict()
    return all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())


def test_an_exported_run_is_what_transformers_loads(config, run_folder, made, tmp_path, capsys):
    target = tmp_path / "out"
    assert export.run(with_job(config, checkpoint=str(run_folder), output=str(target)), None) == 0
    assert f"model.path={target}" in capsys.readouterr().out
    assert same_weights(target, made[1])  # the newest, in the model's own type
    assert AutoTokenizer.from_pretrained(target).pad_token_id == 0
    assert GenerationConfig.from_pretrained(target).pad_token_id == 0
    messages = [{"role": "system", "content": "Fix bugs."}, {"role": "user", "content": "  It fails\n\n"}]
    first_prompt = ChatRenderer(load_tokenizer(config.model), template=config.model.chat_template).start(messages)
    exported = AutoTokenizer.from_pretrained(target)
    assert exported.apply_chat_template(messages, add_generation_prompt=True).input_ids == first_prompt
    assert not {"manifest.json", "state.json", "shards.json"} & {path.name for path in target.iterdir()}
    again = compose(["model=folder", f"model.path={target}"]).config
    assert again.agent.system_prompt == config.agent.system_prompt == "short", "standard does not fit the tiny model"


def test_the_model_card_has_what_the_hub_reads(config, run_folder, tmp_path):
    from huggingface_hub import ModelCard

    events = [
        {"step": step, "split": "heldout", "resolved_rate": rate, "num_samples": 8, "by_instance": {"a": [solved, 8]}}
        for step, rate, solved in ((0, 0.25, 2), (1, 0.5, 4), (2, 1.0, 8))
    ]
    (run_folder / "evals.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    job = with_job(config, checkpoint=str(run_folder / "checkpoints" / "step_000001"), output=str(tmp_path / "out"))
    assert export.run(job, None) == 0
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "text-generation")
    [result] = card.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_split) == ("resolved_rate", 50.0, "heldout")
    assert card.data.get("base_model") is None, "builtin:tiny is not on the hub"
    assert "| 1 | heldout | 8 | 50.0 % |" in card.text and "| 2 |" not in card.text
    assert f"| `algo.name` | `{config.algo.name}` |" in card.text and str(tmp_path) not in card.text


def test_the_cards_keys_are_keys():
    assert set(_SHOWN) <= set(key_types())


def test_a_model_and_a_data_set_of_the_hub_are_linked():
    from huggingface_hub import ModelCard

    saved = {"model.path": "Qwen/Qwen3-4B", "env.dataset": "SWE-Gym/SWE-Gym", "model.name": "q", "env.name": "e|\nx"}
    on_hub = {"Qwen/Qwen3-4B", "SWE-Gym/SWE-Gym", "SWE-bench/verified"}
    data = ModelCard(model_card(saved, 3, [], on_hub)).data
    assert (data.base_model, data.datasets, data.eval_results) == ("Qwen/Qwen3-4B", ["SWE-Gym/SWE-Gym"], None)
    event = {"step": 3, "split": "test", "resolved_rate": 0.5, "num_samples": 8, "by_instance": {"a": [4, 8]}}
    data = ModelCard(model_card(saved | {"env.eval_dataset": "SWE-bench/verified"}, 3, [event], on_hub)).data
    assert (data.datasets, data.eval_results[0].dataset_type) == (["SWE-Gym/SWE-Gym"], "SWE-bench/verified")
    assert "model-index" not in model_card(saved, 4, [event]), "the rate is of other weights"
    names = ("builtin:tiny", "/a/b", "a/b/c", "../a", None, "puzzles/model")
    assert [names_on_hub({_READ[0]: name}, exists=lambda name: "puzzles" in name) for name in names] == [[]] * 6
    assert names_on_hub(saved, exists=lambda name: name == "SWE-Gym/SWE-Gym") == ["Qwen/Qwen3-4B"]


def test_a_folder_that_has_the_form_of_a_hubs_name_is_no_base_model(config, tmp_path, monkeypatch):
    """Nobody can tell them apart afterwards, from another folder: the run says at its start what it read from where."""
    from huggingface_hub import ModelCard

    monkeypatch.chdir(tmp_path)
    Path("puzzles/model").mkdir(parents=True)
    for number, (path, linked) in enumerate((("puzzles/model", None), ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B"))):
        given = replace(config, model=replace(config.model, path=path))
        with open_session(given, tmp_path / f"run{number}", total_steps=0, reports=False) as session:
            run = session.folder
        monkeypatch.chdir("/")
        card = ModelCard(model_card(flatten_config(given), 3, [], recorded_hub_names(run)))
        assert card.data.get("base_model") == linked and (f"huggingface.co/{path}" in card.text) == bool(linked)
        monkeypatch.chdir(tmp_path)


def test_a_link_to_a_checkpoint_is_that_checkpoint(config, run_folder, tmp_path):
    first = run_folder / "checkpoints" / "step_000001"
    (tmp_path / "best").symlink_to(first)
    (tmp_path / "all").symlink_to(first.parent)
    places = {export._export_folder(path) for path in (first, tmp_path / "best", tmp_path / "all" / first.name)}
    assert places == {export._export_folder(first)} and next(iter(places)).parent == run_folder / "exports"
    (run_folder / "evals.jsonl").write_text(
        json.dumps(
            {"step": 1, "split": "heldout", "resolved_rate": 0.5, "num_samples": 2, "by_instance": {"a": [1, 2]}}
        )
    )
    assert export.run(with_job(config, checkpoint=str(tmp_path / "best"), output=str(tmp_path / "out")), None) == 0
    assert "| 1 | heldout | 2 | 50.0 % |" in (tmp_path / "out" / "README.md").read_text()


def test_of_a_run_with_a_critic_the_policy_alone_is_exported(config, tmp_path, capsys):
    model, critic = load_model(config.model), load_model(config.model)
    attach_value_head(critic)
    algo = AlgoConfig(advantage=AdvantageKind.gae)
    trainer = RankTrainer(model, config.trainer, algo, pad_token_id=0, critic=critic)
    with torch.no_grad():
        next(critic.parameters()).add_(1.0)
    state = {"data_order": {}, "config": flatten_config(config), "hash_of_config": config_hash(config), "keep": 1}
    trainer.save(tmp_path / "run" / "checkpoints", step=1, weight_version=1, **state)
    target = tmp_path / "out"
    assert export.run(with_job(config, checkpoint=str(tmp_path / "run"), output=str(target)), None) == 0
    assert same_weights(target, model)
    assert {path.name for path in target.glob("*.safetensors")} == {"model.safetensors"}
    names = [load_file(folder / "model.safetensors").keys() for folder in (target, model_folder(config.model))]
    assert names[0] == names[1]


def test_a_checkpoint_of_an_earlier_step_in_another_type(config, run_folder, made, tmp_path):
    first = run_folder / "checkpoints" / "step_000001"
    job = with_job(config, checkpoint=str(first), output=str(tmp_path / "out"), dtype=ExportType.bfloat16)
    assert export.run(job, None) == 0
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    assert not same_weights(tmp_path / "out", made[1])


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({}, "job.checkpoint=RUN"),
        ({"checkpoint": "."}, "job.output=FOLDER"),
        ({"checkpoint": "/nowhere", "output": "out"}, "/nowhere is neither a checkpoint"),
    ],
)
def test_what_is_missing_is_said(config, job, said):
    with pytest.raises(UserError, match=said):
        export.run(with_job(config, **job), None)


def test_a_damaged_checkpoint_is_refused_and_leaves_nothing(config, run_folder, tmp_path):
    weights = run_folder / "checkpoints" / "step_000002" / "shard_00000_of_00001.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=r"shard_00000_of_00001.safetensors was changed"):
        export.run(with_job(config, checkpoint=str(weights.parent), output=str(tmp_path / "out")), None)
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


def at(config, path):
    return replace(config, model=replace(config.model, path=str(path)))


def test_model_path_takes_a_run_a_checkpoint_and_leaves_the_rest(config, run_folder, made):
    newest = export.with_model_folder(at(config, run_folder)).model.path
    assert newest.startswith(str(run_folder / "exports" / "step_000002-"))
    assert same_weights(newest, made[1]) and load_model(at(config, newest).model) is not None
    first = export.with_model_folder(at(config, run_folder / "checkpoints" / "step_000001")).model.path
    assert first != newest and not same_weights(first, made[1])
    assert export.with_model_folder(config) is config  # builtin:tiny
    exported = at(config, newest)
    assert export.with_model_folder(exported) is exported


def test_a_warm_start_takes_them_for_what_it_begins_with(run_folder):
    config = compose(["job=sft", f"sft.start={run_folder}"]).config
    began = export.with_model_folder(config)
    assert began == replace(
        config, sft=replace(config.sft, start=export.with_model_folder(at(config, run_folder)).model.path)
    )
    other = replace(config, job=replace(config.job, name=JobName.train))
    assert export.with_model_folder(other) is other


def refusals(config):
    return [finding.message for finding in check_config(config) if finding.rule_id == "model_path"]


@pytest.mark.parametrize("inside", ["", "checkpoints/step_000001", "checkpoints", "other"])
def test_the_check_takes_what_the_start_takes(config, run_folder, inside):
    """A run's folder and a checkpoint's are models, the folder between them is none, nor is any one with a manifest."""
    path = run_folder / inside
    (run_folder / "other").mkdir()
    (run_folder / "other" / "manifest.json").write_text("{}")
    neither = inside in ("checkpoints", "other")
    assert bool(refusals(at(config, path))) == (export.checkpoint_in(path) is None) == neither


def test_a_checkpoint_that_its_run_has_removed_is_what_was_exported_of_it(run_folder):
    """Whoever began with it resumes with the same command: sizes and path, so the hash, are those of before."""
    checkpoint = run_folder / "checkpoints" / "step_000001"
    command = ["model=folder", f"model.path={checkpoint}"]
    began = export.with_model_folder(compose(command).config)
    shutil.rmtree(checkpoint)
    facts_of.cache_clear()
    again = compose(command).config
    assert not refusals(again) and config_hash(export.with_model_folder(again)) == config_hash(began)
    shutil.rmtree(run_folder / "exports")
    assert export.with_model_folder(again) is again and "the run has the checkpoints step_000002" in refusals(again)[0]


def test_an_export_in_another_type_is_no_start_of_a_run(config, run_folder, made):
    """It was made to be published, later than the exact one. Then the run removed its checkpoint."""
    checkpoint = run_folder / "checkpoints" / "step_000002"
    began = export.with_model_folder(at(config, checkpoint)).model.path
    rounded = export._export_once(checkpoint, config.model, ExportType.bfloat16, key="job.push")
    shutil.rmtree(checkpoint)
    assert Path(rounded, "config.json").is_file() and str(rounded) != began
    assert export.with_model_folder(at(config, checkpoint)).model.path == began
    shutil.rmtree(began)
    assert export.with_model_folder(at(config, checkpoint)).model.path == str(checkpoint), "nothing exact is left"


def test_a_continued_run_keeps_the_export_that_it_began_with(run_folder, tmp_path):
    """`model.path=RUN` names another checkpoint once that run went on; a start of its own takes the newer one."""
    command = ["model=folder", f"model.path={run_folder}", f"paths.outputs={tmp_path}", "trainer.resume=auto"]
    (run_folder / "checkpoints" / "step_000002").rename(tmp_path / "later")
    began = export.with_model_folder(compose(command).config)
    folder = RunFolder(tmp_path / began.name / "old").create()
    status = StatusWriter(folder.status_json, config_hash=config_hash(began), job=began.job.name)
    status.finish(RunState.interrupted)
    (tmp_path / "later").rename(run_folder / "checkpoints" / "step_000002")
    fresh = folder.path.parent / "new"

    def start(config):
        return export.with_model_folder(config, lambda configs: earlier_of(configs, fresh, None, []))

    again = start(compose(command).config)
    assert again == began and choose_folder(again, fresh)[0].path == folder.path
    shutil.rmtree(run_folder / "exports")
    assert start(compose(command).config) == began and load_model(began.model) is not None
    named = start(compose([*command[:-1], f"trainer.resume={folder.path}"]).config)
    assert named.model == began.model and choose_folder(named, fresh)[1]
    with folder.acquire():
        assert start(named) == named, "in use: for the start to tell of"
    anew = start(compose(command[:-1]).config)
    assert "step_000002" in anew.model.path and not choose_folder(anew, fresh)[1]


def test_runs_are_looked_at_once_for_all_exports(run_folder, tmp_path, monkeypatch):
    command = ["model=folder", f"model.path={run_folder}", f"paths.outputs={tmp_path}", "trainer.resume=auto"]
    config = compose(command).config
    for step in range(10, 30):
        export_folder = run_folder / "exports" / f"step_{step:06}-0"
        export_folder.mkdir(parents=True)
        (export_folder / "config.json").write_text("{}")
    looks = []
    monkeypatch.setattr(which_folder, "runs_of", lambda *asked: looks.append(asked) or [])
    monkeypatch.setattr(which_folder, "find_unfinished", lambda *asked: looks.append(asked))
    export.with_model_folder(config, lambda configs: earlier_of(configs, tmp_path / "new", None, []))
    assert len(looks) == 1


def test_a_checkpoint_is_exported_once_and_anew_when_it_is_another(config, run_folder):
    checkpoint = run_folder / "checkpoints" / "step_000001"
    first = export.with_model_folder(at(config, checkpoint)).model.path
    (run_folder / "exports" / "mark").touch()
    assert export.with_model_folder(at(config, checkpoint)).model.path == first
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    (checkpoint / "manifest.json").write_text(json.dumps(manifest, indent=1))
    assert export.with_model_folder(at(config, checkpoint)).model.path != first


def test_the_model_of_a_run_that_is_gone_may_be_named(config, run_folder, tmp_path):
    checkpoint = run_folder / "checkpoints" / "step_000002"
    state = json.loads((checkpoint / "state.json").read_text())
    moved = json.dumps(state | {"config": state["config"] | {"model.path": str(tmp_path / "gone")}})
    (checkpoint / "state.json").write_text(moved)
    assert export._base_model_folder(checkpoint, export._saved_config(checkpoint), config.model).name == "tiny"
    with pytest.raises(UserError, match="Give model.path=FOLDER of the same model"):
        export._base_model_folder(checkpoint, export._saved_config(checkpoint), replace(config.model, hidden_size=7))


def test_a_full_disk_names_the_exports_folder_and_leaves_nothing(config, run_folder, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    gone = subprocess.Popen(["true"])
    gone.wait()
    host = socket.gethostname()
    left, lives = (tmp_path / f".out.aside-{host}-{pid}" for pid in (gone.pid, os.getppid()))
    for folder in (left, lives):
        (folder / "half").mkdir(parents=True)
    job = with_job(config, checkpoint=str(run_folder), output=str(tmp_path / "out"))
    with monkeypatch.context() as patch:
        patch.setattr("swe_rl.trainer.checkpoint.export.write_file", full)
        with pytest.raises(DiskError, match=r"(?s)cannot write .*/out: No space.*point job\.output at another disk"):
            export.run(job, None)
    assert {path.name for path in tmp_path.iterdir()} == {"run", lives.name}  # another export is at work there
    assert export.run(job, None) == 0
