"""The warm start as a job, at a size that takes a second."""

import contextlib
import itertools
import json
import math
import threading
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from swe_rl.agent.observation import NO_OUTPUT
from swe_rl.check.findings import Host
from swe_rl.check.rules.model import experts_of_a_dense_model
from swe_rl.config.compose import compose
from swe_rl.config.parts import reads_key
from swe_rl.env.bugs.demonstration import Demonstration
from swe_rl.errors import UserError
from swe_rl.facts.warm_start import trainer_config
from swe_rl.files.disk import DiskError
from swe_rl.imitation.demonstrations import Demonstrations
from swe_rl.job import sft as job
from swe_rl.job.plan import make_plan
from swe_rl.job.plan_panels import describe_in_short
from swe_rl.logger.folder import RunFolder, RunState
from swe_rl.logger.jsonl import iter_jsonl
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.load import load_model, load_tokenizer
from swe_rl.model.tiny import build_model, upcycle_dense
from swe_rl.plan import duration
from swe_rl.run import imitation as imitation_steps
from swe_rl.run.imitation import Imitation
from swe_rl.trainer.trainer import TrainMetrics

SMALL = (
    "job=sft",
    "model.num_layers=1",
    "model.hidden_size=32",
    "model.intermediate_size=48",
    "model.vocab_size=400",
    "sft.steps=2",
    "sft.beginner_steps=1",
    "sft.warmup_steps=1",
    "sft.tokens_per_batch=600",
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """`run(name)` makes the model tmp_path/name and returns its folder."""
    monkeypatch.setattr(job, "_TOKENIZER_CONVERSATIONS", 40)
    torch.set_num_threads(1)

    runs = itertools.count()

    def start(name, *overrides):
        config = compose([*SMALL, f"paths.outputs={tmp_path}", f"sft.output={tmp_path / name}", *overrides]).config
        assert job.run(config, tmp_path / f"run_{next(runs)}_{name}") == 0
        return tmp_path / name

    return start


def test_it_leaves_a_model_that_loads(run, tmp_path):
    output = run("model")
    config = compose([*SMALL, f"model.path={output}"]).config.model
    assert load_model(config).config.vocab_size == 400 and load_tokenizer(config).pad_token_id == 0
    figures = json.loads((output / "warm_start.json").read_text())
    assert figures["seed"] == 0 and 0 < figures["loss_skill"] < 10 and 0 < figures["loss_beginner"] < 10
    assert RunFolder(tmp_path / "run_0_model").status().status is RunState.done
    assert not list(tmp_path.glob(".*aside"))


def test_the_plan_has_the_updates_tokens_and_checkpoints_of_the_run(run, tmp_path):
    more = ("sft.checkpoint_every_steps=1", "trainer.keep_checkpoints=2")
    run("model", *more)
    folder = RunFolder(tmp_path / "run_0_model")
    model = ("model.params_b=" + str(build_model(compose([*SMALL]).config.model, 0).num_parameters() / 1e9),)
    made = make_plan(compose([*SMALL, *more, *model]).config)
    steps, batch = list(iter_jsonl(folder.steps_jsonl)), made["batch"]
    assert len(steps) == sum(step["updates"] for step in steps) == batch["updates"] == 3
    least = batch["tokens_per_update_at_least"]
    assert all(least <= step["fed_tokens"] < 2 * least for step in steps)  # the last demonstration goes over it
    assert batch["data_parallel_ranks"] == 1
    kept = [checkpoint for checkpoint in folder.checkpoints.iterdir() if checkpoint.is_dir()]
    on_disk_gb = [sum(file.stat().st_size for file in one.rglob("*.safetensors")) / 1e9 for one in kept]
    assert len(kept) == made["disk"]["checkpoints_kept"] == 2
    assert on_disk_gb == pytest.approx([made["disk"]["checkpoint_gb"]] * 2, rel=0.1)
    assert made["disk"]["checkpoints_gb_at_most"] == pytest.approx(3 * made["disk"]["checkpoint_gb"], rel=0.01)
    assert made["time"] == {"update": "not estimated: no GPU, or its speed is not known"}


def test_the_plans_time_on_gpus_by_hand():
    """Six operations a parameter and token, a third more where activations are computed again, at 35 % of the peak."""
    config = compose(["job=sft", "model=qwen3_0_6b", "layout=dp4", "hardware=h100x8", "sft.start=/m"]).config
    made, gpus = make_plan(config), config.layout.trainer_gpus
    passes = 8 if config.trainer.activation_checkpointing else 6
    operations = passes * config.model.active_params_b * 1e9 * config.sft.tokens_per_batch
    update_s = operations / (gpus * config.hardware.gpu_bf16_tflops * 1e12 * 0.35)
    assert made["time"]["training_s_per_update"] == pytest.approx(update_s, rel=0.1)  # compiled layers take a tenth off
    updates = 5000 + config.sft.beginner_steps  # sft.steps=null
    hours = (duration.START_S + updates * update_s) / 3600
    assert made["time"]["gpu_hours"] == pytest.approx(gpus * hours, rel=0.1)
    assert f"; {gpus} GPUs, {made['time']['gpu_hours']:g} GPU-hours" in describe_in_short(
        made
    )  # of those that are not idle


def test_with_experts_it_is_a_mixture(run):
    experts = ("model.num_experts=4", "model.active_experts=2", "model.expert_intermediate_size=24")
    output = run("mixture", *experts)
    config = compose([*SMALL, *experts, f"model.path={output}"]).config.model
    assert load_model(config).config.model_type == "qwen3_moe"


@pytest.mark.slow
def test_it_begins_with_a_dense_model_whose_mlps_become_experts(run):
    """With as good as no step the mixture says what the dense model says; its tokenizer stays."""
    dense = run("dense")
    still = ("sft.steps=1", "sft.beginner_steps=0", "sft.lr=1e-9", f"sft.start={dense}")
    experts = ("model.num_experts=4", "model.active_experts=2", "model.expert_intermediate_size=24")
    again, mixture = run("again", *still), run("mixture", *still, *experts)
    of_dense = compose([*SMALL, f"model.path={dense}"]).config.model
    models = [
        load_model(replace(compose([*SMALL, *more, f"model.path={folder}"]).config.model))
        for folder, more in ((dense, ()), (again, ()), (mixture, experts))
    ]
    ids = torch.arange(300)[None]
    with torch.no_grad():
        expected, same, near = (model(ids).logits.log_softmax(-1) for model in models)
    torch.testing.assert_close(same, expected)
    assert (near - expected).abs().mean() < 0.01 * expected.std()
    assert (mixture / "tokenizer.json").read_bytes() == (dense / "tokenizer.json").read_bytes()
    assert load_tokenizer(of_dense).vocab_size == 400


@pytest.mark.parametrize(
    ("experts", "active", "width", "possible"),
    [(4, 2, 24, True), (4, 4, 24, False), (6, 3, 24, False), (6, 3, 16, True)],
)
def test_rule_and_job_agree_on_which_experts_a_dense_model_gives(experts, active, width, possible):
    sizes = (
        f"model.num_experts={experts}",
        f"model.active_experts={active}",
        f"model.expert_intermediate_size={width}",
    )
    config = compose([*SMALL, *sizes, "sft.start=/models/mine"]).config
    found = [one.rule_id for one in experts_of_a_dense_model(config, Host(environment={}, exists=lambda _: True))]
    assert found == [] if possible else "sft_start" in found
    dense = build_model(replace(config.model, num_experts=0), 0)
    with contextlib.nullcontext() if possible else pytest.raises(UserError, match=r"sft\.start=.*two experts each"):
        assert upcycle_dense(dense, config.model, 0).config.num_experts == experts


def test_a_model_to_begin_with_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    config = compose([*SMALL, f"sft.start={tmp_path}"]).config
    with pytest.raises(UserError, match=r"sft\.start=.* cannot be read.*Give the folder of a model"):
        job._start_folder(config, tmp_path / "start")


def test_the_same_configuration_gives_the_same_weights_and_replaces_a_model(run):
    first = (run("model") / "model.safetensors").read_bytes()
    assert (run("again") / "model.safetensors").read_bytes() == first
    assert (run("model", "sft.seed=1") / "model.safetensors").read_bytes() != first


def test_a_folder_without_a_model_is_not_replaced(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match=r"sft\.output=.*mine.*holds no model"):
        run("mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    assert (run("empty") / "model.safetensors").is_file()


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_kill_at_any_rename_leaves_a_whole_model(tmp_path, monkeypatch, renames):
    """Killed before the old model has moved, before the new one has its name, or before the old one is gone."""

    def write(folder):
        folder.mkdir(exist_ok=True)  # what was left was not removed
        (folder / "model.safetensors").write_text("new")

    output, done, rename = tmp_path / "model", [], Path.rename
    output.mkdir()
    (output / "model.safetensors").write_text("old")

    def killed(path, target):
        if len(done) == renames:
            raise KeyboardInterrupt
        done.append(path)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed)
    monkeypatch.setattr(job.shutil, "rmtree", lambda *_, **__: None)  # what comes last was not reached either
    with contextlib.suppress(KeyboardInterrupt):
        job._save_aside(output, write, {})
    monkeypatch.undo()
    job._put_back(output)
    assert (output / "model.safetensors").read_text() == ("new" if renames == 2 else "old")
    job._save_aside(output, write, {})
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (output / "model.safetensors").read_text() == "new"


@pytest.mark.parametrize("renames", [None, 0, 1])
def test_a_full_disk_leaves_the_old_model_and_nothing_aside(tmp_path, monkeypatch, renames):
    """Met while the new one is written, as the old one moves, or as the new one gets its name."""
    output, done, rename = tmp_path / "model", [], Path.rename
    output.mkdir()
    (output / "model.safetensors").write_text("old")

    def write(folder):
        folder.mkdir()
        if renames is None:
            raise OSError(28, "No space left on device")

    def full(path, target):
        done.append(path)
        if len(done) - 1 == renames:
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(DiskError, match=r"model: No space left.*sft\.output"):
        job._save_aside(output, write, {})
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (output / "model.safetensors").read_text() == "old"


def test_a_conversation_alternates_and_ends_with_the_submission():
    one = Demonstration("right", "It fails.", ("look", "mend", "submit"), ("code\n", ""))
    messages = job.demonstrate_conversation(one, "PROMPT")
    assert [message["role"] for message in messages] == ["system", "user", *["assistant", "user"] * 2, "assistant"]
    assert [message["content"] for message in messages] == [
        "PROMPT",
        "It fails.",
        "```bash\nlook\n```",
        "code\n",
        "```bash\nmend\n```",
        NO_OUTPUT,
        "```bash\nsubmit\n```",
    ]


def steps_of(folder):
    return [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]


def test_each_step_has_a_line_and_the_run_a_summary(run, tmp_path):
    run("model")
    first, second, third = steps_of(tmp_path / "run_0_model")
    assert [(line["step"], line["stage"]) for line in (first, second, third)] == [(1, 1), (2, 1), (3, 2)]
    assert [line["lr"] for line in (first, second, third)] == pytest.approx([2e-3, 2e-3, 3e-4])
    assert 0 < first["trained_tokens"] < first["fed_tokens"] and first["fed_tokens"] >= 600
    assert json.loads((tmp_path / "run_0_model" / "summary.json").read_text())["steps"] == 3
    assert (tmp_path / "run_0_model" / "report.html").is_file()


def same_weights(ours, theirs, atol=1e-5):
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], atol=atol, rtol=0)


LONGER = ("sft.steps=4", "sft.beginner_steps=2", "sft.checkpoint_every_steps=2")


def killed_after(step, monkeypatch):
    """Where the run has written down `step`, and not saved it."""
    record = Imitation._record

    def killed(steps, *given):
        record(steps, *given)
        if steps.step == step:
            raise OSError("the power went")

    monkeypatch.setattr(Imitation, "_record", killed)


def test_a_quiet_console_has_no_lines_of_stages_and_run_log_has_them(run, tmp_path, capsys):
    run("model", "logger.verbosity=quiet")
    assert "stage 1 of 2" not in capsys.readouterr().out
    assert "stage 1 of 2: 2/2" in RunFolder(tmp_path / "run_0_model").run_log.read_text()


def test_the_trainer_has_other_values_than_its_own_keys_only_where_a_warm_start_does_not_read_them():
    """`trainer_config` against `config/parts`: a key that the job reads is the trainer's, one that it does not read
    is not.
    """
    config = compose(list(SMALL)).config
    given = replace(
        config, trainer=replace(config.trainer, **{field.name: object() for field in fields(config.trainer)})
    )
    made = trainer_config(given).trainer
    changed = {name.name for name in fields(made) if getattr(made, name.name) is not getattr(given.trainer, name.name)}
    unread = {field.name for field in fields(made) if not reads_key(config, f"trainer.{field.name}")}
    # There are no engines, each part of a warm start has a schedule of its own, and its losses have no first step.
    kept = {"weight_sync", "check_weights", "lr_schedule", "lr_final_fraction", "eval_from_step"}
    assert changed == unread - kept


@pytest.mark.slow
def test_killed_and_resumed_is_not_interrupted(run, tmp_path, monkeypatch):
    """Within a stage, and after the first step of the second one."""
    whole, resume = run("whole", *LONGER), "trainer.resume=none"
    for step in (3, 5):
        with monkeypatch.context() as patch:
            killed_after(step, patch)
            with pytest.raises(OSError, match="the power went"):
                run("model", *LONGER, resume)
        resume = f"trainer.resume={tmp_path / 'run_1_model'}"
    assert not (tmp_path / "model").exists()
    resumed = run("model", *LONGER, resume)
    for name in ("model.safetensors", "warm_start.json"):
        assert (resumed / name).read_bytes() == (whole / name).read_bytes()
    losses = [
        [(line["step"], line["loss"]) for line in steps_of(tmp_path / name)] for name in ("run_0_whole", "run_1_model")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 6


def warm_start(trainer=None, **folder):
    """One whose run is written nowhere."""
    session = SimpleNamespace(
        steps=SimpleNamespace(append=lambda _: None, truncate_after=lambda _: None),
        mirrors=SimpleNamespace(log=lambda *_: None),
        status=SimpleNamespace(heartbeat=lambda _: None),
        progress=SimpleNamespace(state=SimpleNamespace(), message=lambda _: None),
        report=SimpleNamespace(step_done=lambda: None),
        folder=SimpleNamespace(path=None, checkpoints=None, **folder),
    )
    config = compose([*SMALL, "model.path=builtin:tiny", "sft.checkpoint_every_steps=0"]).config
    renderer = ChatRenderer(load_tokenizer(compose([]).config.model), template="qwen_plain")
    return Imitation(config, session, Demonstrations(config, renderer), trainer, "")


def test_a_step_whose_loss_was_no_number_is_one_again_for_who_resumes(tmp_path, monkeypatch):
    (tmp_path / "steps.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": null}\n')
    monkeypatch.setattr(imitation_steps, "load_newest", lambda *_: (2, None))
    steps = warm_start(steps_jsonl=tmp_path / "steps.jsonl")
    steps.resume()
    assert math.isnan(steps._mean_loss(steps._stages[0], 2)) and steps._mean_loss(steps._stages[0], 1) == 2.0


def test_a_checkpoint_waits_for_the_step_that_is_under_way():
    """An event loop that is torn down cancels who waits for the step's thread, and not the thread."""
    saved, trains, goes_on = [], threading.Event(), threading.Event()

    def train_step(rows, step, lr):
        trains.set()
        assert goes_on.wait(30)
        return TrainMetrics(**{field.name: 0 for field in fields(TrainMetrics)} | {"step": step})

    steps = warm_start(SimpleNamespace(train_step=train_step, save=lambda *_, step, **__: saved.append(step)))
    threads = [threading.Thread(target=work) for work in (steps._one_step, steps.save)]
    threads[0].start()
    assert trains.wait(30)
    threads[1].start()
    assert saved == []
    goes_on.set()
    for thread in threads:
        thread.join(30)
    assert saved == [1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "ranks",
    [
        ("layout.sequence_parallel=2",),
        (
            "layout.expert_parallel=2",
            *("model.num_experts=4", "model.active_experts=2"),
            "model.expert_intermediate_size=24",
        ),
    ],
)
def test_two_ranks_that_are_killed_and_one_process_that_goes_on_are_one_process(run, tmp_path, monkeypatch, ranks):
    parallel, *model = ranks
    two = (
        "layout.trainer_ranks=2",
        parallel,
        "trainer.collective_timeout_s=120",
        "trainer.max_tokens_per_micro_batch=200",
    )
    whole = run("whole", *LONGER, *model)
    with monkeypatch.context() as patch:
        killed_after(5, patch)
        with pytest.raises(OSError, match="the power went"):
            run("model", *LONGER, *model, *two)
    alone = steps_of(tmp_path / "run_0_whole")
    for line, expected in zip(steps_of(tmp_path / "run_1_model"), alone, strict=False):
        assert line["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert line["grad_norm"] == pytest.approx(expected["grad_norm"], abs=1e-4)
    goes_on = (f"trainer.resume={tmp_path / 'run_1_model'}", "trainer.max_tokens_per_micro_batch=200")
    # A step is up to 2e-3. Adam makes parts of it from the rounding of tiny gradients, which differs from CPU to CPU.
    same_weights(run("model", *LONGER, *model, *goes_on), whole, atol=5e-5)
    assert [line["step"] for line in steps_of(tmp_path / "run_1_model")] == [1, 2, 3, 4, 5, 6]
