"""What a run says first."""

from pathlib import Path

from swe_rl.config.compose import compose
from swe_rl.job.plan import make_plan
from swe_rl.logger.banner import banner_lines
from swe_rl.logger.folder import RunFolder


def lines(*overrides):
    config = compose(overrides).config
    return banner_lines(config, make_plan(config), Path("/runs/a"))


def test_a_run_on_a_cpu():
    """A CPU's training is not estimated, so no time is named."""
    assert lines("trainer.steps=24") == [
        "train   tiny on bugs: agent bash, algo grpo, engine embedded",
        "plan    24 steps of 8 instances x 8 trajectories",
        "folder  /runs/a",
        "watch   tail -f /runs/a/run.log",
    ]


def test_code_of_ones_own_is_named_beside_the_algorithm(tmp_path):
    for kind in ("advantage", "loss"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "mine.yaml").write_text("# Mine.\nname: mine\n_target_: json.JSONDecoder\n")
    config = compose(("advantage=mine", "loss=mine"), config_dir=tmp_path).config
    [line, *_] = banner_lines(config, {}, Path("/runs/a"))
    assert line.endswith("agent bash, algo grpo with advantage mine and loss mine, engine embedded")


def test_a_narrow_terminal_gets_no_command_that_it_cuts():
    folder = Path("/a" * 35)
    *_, place, watch = banner_lines(compose(()).config, {}, folder, columns=80)
    assert (place, watch) == (f"folder  {folder}", "watch   tail -f run.log, in this folder")
    assert banner_lines(compose(("job=eval",)).config, {}, folder)[-1].endswith("/run.log")


def test_gpus_and_the_estimate_of_the_plan():
    overrides = ("model=qwen3_8b", "layout=colocated8", "hardware=h100x8", "env=swe_gym", "agent=mini_swe")
    what, work, *_ = lines(*overrides)
    assert what.endswith("engine vllm, 8 GPUs, layout colocated8, router default")
    assert work.endswith(f", about {make_plan(compose(overrides).config)['time']['run']}")


def test_an_evaluation_and_a_run_without_a_trainer():
    assert lines("job=eval", "rollout.eval_n=3")[:2] == [
        "eval    tiny on bugs: agent bash, engine embedded",
        "plan    3 trajectories for each instance of heldout",
    ]
    assert lines("job=rollout")[0] == "rollout tiny on bugs: agent bash, engine embedded"


def test_what_tells_a_run_from_others_of_its_sweep():
    config = compose(()).config
    assert (
        banner_lines(config, {}, Path("/runs/0"), ["trainer.seed=0", "algo=rloo"])[1]
        == "with    trainer.seed=0  algo=rloo"
    )


def test_a_folder_below_the_working_directory_is_named_from_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path / "outputs" / "a", Path("outputs/a")):
        assert banner_lines(compose(()).config, {}, folder)[-2:] == [
            "folder  outputs/a",
            "watch   tail -f outputs/a/run.log",
        ]


def test_overrides_are_those_of_the_folder(tmp_path):
    folder = RunFolder(tmp_path)
    assert folder.overrides() == []
    (tmp_path / ".hydra").mkdir()
    written = tmp_path / ".hydra" / "overrides.yaml"
    for text, overrides in (("- a=1\n- b='x y'\n", ["a=1", "b='x y'"]), ("[]\n", []), ("{", [])):
        written.write_text(text)
        assert folder.overrides() == overrides
