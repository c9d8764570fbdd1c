"""`trainer.lora_rank` from the command line: killed and resumed, the same on two ranks, exported, used."""

import json

import pytest
from safetensors.torch import load_file

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LORA = ("trainer.lora_rank=8", "trainer.lr=3e-3", "algo.kl_coef=0.01", "trainer.steps=2", "trainer.resume=auto")


def test_an_adapter_is_trained_resumed_exported_and_used(command, tmp_path_factory):
    pytest.importorskip("peft")  # not above: its import takes seconds, of each process that collects
    process = command.start(*LORA)
    command.wait_for_checkpoint(process, 1)
    process.kill()
    process.communicate()
    resumed = command.run(*LORA)
    assert resumed.exit_status == 0, resumed.text
    assert "continues after step 1" in resumed.text
    steps = command.steps()
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:  # engines sample what the trainer computes, before and after the first update
        assert step["updates"] == 1 and step["logprob_diff_mean"] < 1e-5 and step["weight_version"] == step["step"]
        assert 0 <= step["reward_mean"] <= 1 and sum(step["statuses"].values()) == step["num_trajectories"]
    assert steps[0]["kl_loss"] == 0 < steps[1]["kl_loss"]
    checkpoint = command.folder() / "checkpoints" / "step_000002"
    assert json.loads((checkpoint / "state.json").read_text())["adapter"]["base"]["path"] == "builtin:tiny"

    two_ranks = type(command)(tmp_path_factory.mktemp("ranks"))
    done = two_ranks.run(*LORA, "layout=local2")
    assert done.exit_status == 0, done.text
    for ours, theirs in zip(steps, two_ranks.steps(), strict=True):
        for key in ("loss", "grad_norm", "entropy", "kl_loss", "reward_mean"):
            assert ours[key] == pytest.approx(theirs[key], abs=1e-5), key
        assert ours["statuses"] == theirs["statuses"]

    target = command.root / "merged"
    done = command.run("job=export", f"job.checkpoint={command.folder()}", f"job.output={target}", small=False)
    assert done.exit_status == 0, done.text
    assert (target / "adapter" / "adapter_config.json").is_file()
    assert all("lora_" in name for name in load_file(checkpoint / "shard_00000_of_00001.safetensors"))  # no base in it
    done = command.run("job=eval", f"model.path={target}")
    assert done.exit_status == 0, done.text
