"""The messages of a user's main mistakes, word for word."""

import random
import re
from dataclasses import is_dataclass

import pytest

from swe_rl.cli.launch import run_command
from swe_rl.config.compose import compose
from swe_rl.config.explain import ConfigError, _find_problem, groups_of
from swe_rl.config.keys import comment_of, is_legal, key_types, nearest_keys
from swe_rl.config.spelling.foreign_keys import COMMON, NEAR, SAME

WORD, HELP = " has no value: an override is KEY=VALUE.", " `--help` lists what there is."
MESSAGES = {
    "rollout.nn=3": (
        "Unknown key 'rollout.nn' (command line: rollout.nn=3). Did you mean rollout.n? "
        "(rollout.n: trajectories of one instance: a group.) "
        "`job=describe job.topic=rollout` lists the keys of rollout."
    ),
    "n=3": (
        "Unknown key 'n' (command line: n=3). Did you mean rollout.n? "
        "(rollout.n: trajectories of one instance: a group.)"
    ),
    "modl=tiny": "Unknown key 'modl' (command line: modl=tiny). Did you mean model?",
    "+foo.bar=1": "Unknown key 'foo.bar' (command line: +foo.bar=1).",
    "model=qwen3": (
        "model=qwen3: the group model has no option 'qwen3'. Did you mean qwen3_8b or qwen3_4b or qwen3_32b? Options: "
        "devstral, folder, gemma_4_31b, glm_4_5_air, glm_4_7_flash, gpt_oss_20b, nemotron_3_nano, olmo_3_7b, "
        "qwen2_5_coder_0_5b, qwen3_0_6b, qwen3_14b, qwen3_1_7b, qwen3_32b, qwen3_4b, qwen3_5_0_8b, "
        "qwen3_5_27b, qwen3_5_2b, "
        "qwen3_5_35b_a3b, qwen3_5_4b, qwen3_5_9b, qwen3_8b, qwen3_coder_30b_a3b, qwen3_coder_next, "
        "qwen3_next_80b_a3b, seed_oss_36b, tiny, tiny_moe."
    ),
    "algo=gpro": (
        "algo=gpro: the group algo has no option 'gpro'. Did you mean gspo or grpo? "
        "Options: cispo, dapo, distill, dr_grpo, grpo, gspo, ppo, ppo_clip, reinforce_pp, reinforce_pp_baseline, "
        "rft, rloo."
    ),
    "trainer.lr=fast": "trainer.lr must be a number, not 'fast' (command line: trainer.lr=fast).",
    "rollout.n=8.5": "rollout.n must be a whole number, not '8.5' (command line: rollout.n=8.5).",
    "algo.advantage=grp": (
        "algo.advantage must be one of grpo, dr_grpo, rloo, reinforce_pp, reinforce_pp_baseline, gae, teacher, kept, "
        "not 'grp' (command line: algo.advantage=grp). Did you mean grpo or dr_grpo?"
    ),
    "model.num_layers=null": "model.num_layers must be a whole number (command line: model.num_layers=null).",
    "rollout.n=2,4": "rollout.n=2,4 lists several values: add --multirun to run each, or write a list as KEY=[a,b].",
    "experiment=dp4_default": (
        "experiment=dp4_default: the group experiment is not part of the default composition; "
        "write +experiment=dp4_default."
    ),
    "+model=tiny": "+model=tiny: the group model is always part of the composition; write model=tiny.",
    "~router": (
        "~router: the group router cannot be left out. Options: cap, default, sticky_least_loaded, tr, tr_atw01."
    ),
    "~rollout.n": (
        "~rollout.n: a key of the schema cannot be removed; set it to another value, or to null where it may be."
    ),
    "train": "train" + WORD + " Did you mean `python -m swe_rl job=train`?" + HELP,
    "rollout": "rollout" + WORD + " Did you mean `python -m swe_rl job=rollout`?" + HELP,
    "trian": "trian" + WORD + " Did you mean `python -m swe_rl job=train`?" + HELP,
    "dp4_default": "dp4_default" + WORD + " Did you mean `python -m swe_rl +experiment=dp4_default`?" + HELP,
    "rollout.n": "rollout.n" + WORD + " Did you mean rollout.n=VALUE?" + HELP,
    "zzz": "zzz" + WORD + HELP,
    "help": "help is no override. Did you mean `python -m swe_rl --help`?",
    "model=[tiny,null]": (
        "model=[tiny,null] names no option of the group model. Options: "
        "devstral, folder, gemma_4_31b, glm_4_5_air, glm_4_7_flash, gpt_oss_20b, nemotron_3_nano, olmo_3_7b, "
        "qwen2_5_coder_0_5b, qwen3_0_6b, qwen3_14b, qwen3_1_7b, qwen3_32b, qwen3_4b, qwen3_5_0_8b, "
        "qwen3_5_27b, qwen3_5_2b, "
        "qwen3_5_35b_a3b, qwen3_5_4b, qwen3_5_9b, qwen3_8b, qwen3_coder_30b_a3b, qwen3_coder_next, "
        "qwen3_next_80b_a3b, seed_oss_36b, tiny, tiny_moe."
    ),
    "name=${rollout}": (
        "The configuration does not compose: name refers to a value of another kind (a table of keys): write the value "
        "itself."
    ),
    "rollout.outcomes.nope.retries=1": (
        "rollout.outcomes.nope.retries: rollout.outcomes has no such row. "
        "The command line changes rows that there are; new ones belong into a file of conf/."
    ),
}

SLURM = "hydra/launcher=submitit_slurm"
MORE = (
    " What SLURM needs is in hardware, as in hardware.account; flags of sbatch that have no key go into "
    "hydra.launcher.additional_parameters."
)


@pytest.mark.parametrize("sign", ["", "+", "++"])
def test_a_misspelled_key_of_the_launcher_is_refused(sign):
    with pytest.raises(ConfigError) as caught:
        compose([SLURM, f"{sign}hydra.launcher.acount=me"])
    assert str(caught.value) == (
        f"Unknown key 'hydra.launcher.acount': no launcher has it. Did you mean hydra.launcher.account?{MORE}"
    )
    with pytest.raises(ConfigError, match="another hydra/launcher has it"):
        compose([f"{sign}hydra.launcher.account=me"])
    assert compose([SLURM, "hydra.launcher.account=me"]).launcher_settings["account"] == "me"
    assert compose([SLURM, "+hydra.launcher.additional_parameters.wckey=a"]).launcher == "submitit_slurm"


def test_keys_of_other_systems_have_ours_beside_them():
    known = SAME | NEAR
    assert len(known) > 150 and not SAME.keys() & NEAR.keys()
    for foreign, key in (known | COMMON).items():
        assert key in key_types() and not is_legal(foreign), foreign


@pytest.mark.parametrize(
    ("foreign", "key"),
    {
        "generator.n_samples_per_prompt=8": "rollout.n",
        "+actor_rollout_ref.rollout.n=8": "rollout.n",
        "trainer.total_epochs=3": "trainer.steps",
        "algorithm.kl_ctrl.kl_coef=0.1": "algo.kl_coef",
        "actor_rollout_ref.model.path=a": "model.path",
        "rollout_batch_size=4": "rollout.prompts_per_step",
        "trainer.placement.colocate_all=true": "layout.colocated",
        "n_samples_per_prompt": "rollout.n",
        "batch_size=64": "rollout.prompts_per_step",
        "trainer.learning_rate=1e-6": "trainer.lr",
        "sft.learning_rate=1e-6": "sft.lr",
        "sft.warmup_ratio=0.1": "sft.warmup_steps",
        "sft.lr_scheduler_type=cosine": "sft.lr_schedule",
        "rollout.max_new_tokens=512": "rollout.max_turn_tokens",
    }.items(),
)
def test_a_key_of_another_system_is_answered_with_ours(foreign, key):
    with pytest.raises(ConfigError, match=rf"Did you mean {key}\?"):
        compose([foreign])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("learnig_rate=1e-5", "trainer.lr"),
        ("trainer.learing_rate=1e-5", "trainer.lr"),
        ("samples_per_prompt=8", "rollout.n"),
        ("save_freq=10", "trainer.checkpoint_every_steps"),
        ("ppo_mini_batch_size=64", "trainer.prompts_per_mini_batch"),
        ("lora_alfa=16", "trainer.lora_alpha"),
        ("tempreture=0.7", "rollout.temperature"),
        ("trainer.stpes=3", "trainer.steps"),
        ("rollout.num_samples=8", "rollout.n"),
    ],
)
def test_a_misspelt_word_of_ours_or_of_another_system_is_answered_with_our_key(typed, meant):
    with pytest.raises(ConfigError, match=f"Did you mean {re.escape(meant)}[? ]"):
        compose([typed])


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("trainer.beta=0.9", "trainer.beta1"),
        ("trainer.bet2a=0.9", "trainer.beta2"),
        ("job.tdype=bfloat16", "job.dtype"),
        ("runtime.nnode=local", "runtime.node"),
        ("enginee.kind=fake", "engine.kind"),
        ("sf.epochs=2", "sft.epochs"),
        ("nme=a", "name"),
    ],
)
def test_a_key_of_ours_with_a_wrong_letter_is_among_the_answers(typed, ours):
    """Another system's word may be as near, and a key of another group may have the same name."""
    with pytest.raises(ConfigError) as raised:
        compose([typed])
    assert ours in re.search(r"Did you mean (.*?)\?", str(raised.value))[1].split(" or ")


def test_nearly_every_key_of_ours_is_found_again_with_a_wrong_letter():
    """A letter is left out, doubled, or exchanged with the next one, in the group or in the last word."""
    rng = random.Random(0)
    groups = groups_of(None)
    missed = []
    asked = 0
    for key in rng.sample([key for key in key_types() if "." in key], 80):
        group, _, leaf = key.rpartition(".")
        for word, typed in ((group, "{}." + leaf), (leaf, group + ".{}")):
            at = rng.randrange(len(word))
            letter, following, rest = word[at : at + 1], word[at + 1 : at + 2], word[at + 2 :]
            change = rng.choice((following, letter + letter + following, following + letter))
            wrong = typed.format(word[:at] + change + rest)
            if is_legal(wrong) or "" in wrong.split("."):
                continue
            asked += 1
            answer = re.search(r"Did you mean (.*?)\?", _find_problem(f"{wrong}=1", groups))
            if answer is None or key not in answer[1].split(" or "):
                missed.append(wrong)
    assert asked > 120
    assert len(missed) <= 0.02 * asked, missed


def test_a_word_that_resembles_nothing_gets_no_guess():
    with pytest.raises(ConfigError) as raised:
        compose(["xyzzy=1"])
    assert "Did you mean" not in str(raised.value)


def test_a_flag_of_another_system_is_answered_with_our_key(capsys):
    assert run_command(["--rollout-batch-size", "8", "--n-samples-per-prompt=4"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "Did you mean rollout.prompts_per_step=VALUE rollout.n=4?" in said


@pytest.mark.parametrize(
    ("flags", "meant"),
    [
        (["--batch-size", "64"], "rollout.prompts_per_step=VALUE"),
        (["--learning-rate=1e-6"], "trainer.lr=1e-6"),
        (["--trainer.steps=3"], "trainer.steps=3"),
        (["--prompts-per-step=3"], "rollout.prompts_per_step=3"),
    ],
)
def test_a_flag_that_means_a_key_is_answered_with_it(capsys, flags, meant):
    assert run_command(flags) == 2
    assert f"Did you mean {meant}?" in " ".join(capsys.readouterr().err.split())


# What people type who come from elsewhere, and the key that each of them means.
SPELLINGS = {
    "batch_size=8": "rollout.prompts_per_step",
    "lr=1e-5": "trainer.lr",
    "epochs=3": "trainer.steps",
    "n_epochs=3": "trainer.steps",
    "learning_rate=1e-5": "trainer.lr",
    "max_steps=10": "trainer.steps",
    "trainer.max_step=10": "trainer.steps",
    "trainer.stesp=10": "trainer.steps",
    "rollout.temprature=1": "rollout.temperature",
    "max_turns=9": "rollout.max_turns",
    "temperature=1": "rollout.temperature",
    "kl_coef=0.1": "algo.kl_coef",
    "gpus=2": "hardware.gpus_per_node",
    "model_path=a": "model.path",
    # TRL
    "num_generations=8": "rollout.n",
    "max_completion_length=512": "rollout.max_trajectory_tokens",
    "beta=0.04": "algo.kl_coef",
    "epsilon_high=0.28": "algo.clip_high",
    "scale_rewards=true": "algo.normalize_std",
    "vllm_gpu_memory_utilization=0.5": "engine.gpu_memory_utilization",
    "report_to=wandb": "logger.wandb",
    # verl
    "data.train_batch_size=64": "rollout.prompts_per_step",
    "actor_rollout_ref.actor.optim.lr=1e-6": "trainer.lr",
    "actor_rollout_ref.actor.kl_loss_coef=0.1": "algo.kl_coef",
    "trainer.total_epochs=2": "trainer.steps",
    # OpenRLHF
    "micro_train_batch_size=4": "trainer.max_tokens_per_micro_batch",
    "init_kl_coef=0.01": "algo.kl_coef",
    "generate_max_len=1024": "rollout.max_trajectory_tokens",
    "pretrain=a": "model.path",
    "vllm_num_engines=4": "layout.engines",
    # NeMo-RL
    "grpo.num_prompts_per_step=32": "rollout.prompts_per_step",
    "grpo.num_generations_per_prompt=16": "rollout.n",
    "grpo.max_num_steps=100": "trainer.steps",
    "loss_fn.ratio_clip_max=0.2": "algo.clip_high",
    "policy.max_total_sequence_length=4096": "rollout.max_trajectory_tokens",
    "cluster.gpus_per_node=8": "hardware.gpus_per_node",
    "checkpointing.save_period=10": "trainer.checkpoint_every_steps",
    # SkyRL, slime
    "generator.n_samples_per_prompt=8": "rollout.n",
    "trainer.policy.optimizer_config.lr=1e-6": "trainer.lr",
    "rollout_max_response_len=8192": "rollout.max_trajectory_tokens",
    "num_rollout=3000": "trainer.steps",
    "tensor_model_parallel_size=2": "layout.engine_tp",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_wrong_or_foreign_spelling_is_answered_with_the_right_key_first(spelling):
    with pytest.raises(ConfigError, match=rf"Did you mean {SPELLINGS[spelling]}\b") as caught:
        compose([spelling])
    assert caught.value.exit_status == 2


def test_a_key_of_another_system_is_answered_with_the_unit_of_ours(capsys):
    with pytest.raises(ConfigError, match=r"\(rollout\.prompts_per_step: instances of one step\.\)"):
        compose(["batch_size=8"])
    assert run_command(["--batch-size=8"]) == 2
    assert "(rollout.prompts_per_step: instances of one step.)" in " ".join(capsys.readouterr().err.split())
    assert all(comment_of(key) for key in COMMON.values() if "." in key)


@pytest.mark.parametrize(
    "typed", ["lr=1e-6", "temperature=0.7", "kl_coef=0.01", "top_p=0.9", "rollout.max_turn=30", "trainer.stpes=3"]
)
def test_a_key_of_ours_that_is_offered_says_what_it_counts(typed, capsys):
    with pytest.raises(ConfigError, match=r"Did you mean ([\w.]+)[? ].*\(\1: .+\.\)"):
        compose([typed])
    assert run_command([f"--{typed}"]) == 2
    assert re.search(r"Did you mean ([\w.]+)=.*\(\1: .+\.\)", " ".join(capsys.readouterr().err.split()))


def test_a_topic_of_another_name_is_answered_with_ours(capsys):
    assert run_command(["job=describe", "job.topic=learning_rate"]) == 2
    assert "Did you mean trainer.lr?" in " ".join(capsys.readouterr().err.split())


def test_a_command_line_of_another_system_is_answered_with_one_of_ours():
    """What can be taken is one line to copy; nothing of it is set, and each other key is named with ours."""
    theirs = ["data.train_batch_size=64", "+actor_rollout_ref.rollout.n=8", "algorithm.adv_estimator=grpo"]
    with pytest.raises(ConfigError) as caught:
        compose(["job=check", "trainer.steps=2", *theirs])
    assert " rollout.prompts_per_step=64 rollout.n=8. " in str(caught.value)
    assert "algorithm.adv_estimator (algo.advantage)" in str(caught.value)
    assert compose(["rollout.prompts_per_step=64", "rollout.n=8"]).config.rollout.n == 8
    assert compose([SLURM, "hydra.launcher.nodes=1", "+hydra.launcher.additional_parameters.num_nodes=2"]).launcher


@pytest.mark.parametrize("override", MESSAGES)
def test_message(override):
    with pytest.raises(ConfigError) as caught:
        compose([override])
    assert str(caught.value) == MESSAGES[override]
    assert caught.value.exit_status == 2


def test_the_key_at_fault_is_named_and_not_the_option_before_it():
    with pytest.raises(ConfigError) as caught:
        compose(["env=jsonl", "env.dataset=rows.jsonl", "env.instances=[a]"])
    assert str(caught.value) == "env.instances must be text or null (command line: env.instances=[a])."


@pytest.mark.parametrize("override", ["rollout.n", "rollout.n=(", "=", "rollout=5", "a b=c", "rollout.n=${nope.x}"])
def test_anything_odd_is_one_paragraph(override):
    with pytest.raises(ConfigError) as caught:
        compose([override])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_missing_launcher_names_the_package():
    with pytest.raises(ConfigError, match="hydra/launcher has no option 'nope'"):
        compose(["hydra/launcher=nope"])


def test_every_key_says_what_it_is_for():
    leaves = [key for key, hint in key_types().items() if not (isinstance(hint, type) and is_dataclass(hint))]
    assert len(leaves) > 300 and [key for key in leaves if not comment_of(key)] == []


def test_legal_keys_follow_the_schema():
    assert is_legal("rollout.outcomes.infra_error.retries")
    assert is_legal("hardware.env_vars.ANY_NAME")
    assert not is_legal("rollout.outcomes.infra_error.retris")
    assert not is_legal("hardware.env_vars.A.b")
    assert not is_legal("rollout.n.x")


def test_nearest_prefers_the_same_last_part():
    assert nearest_keys("trainer.temperature")[0] == "rollout.temperature"
    assert nearest_keys("trainer.prompts_per_minibatch")[0] == "trainer.prompts_per_mini_batch"


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("router=thunder", "Did you mean tr?"),
        ("algo=deepseekmath", "Did you mean grpo?"),
        ("env.eval_split=heldout[:4]", "'env.eval_split=\"heldout[:4]\"'"),
    ],
)
def test_the_answer_is_what_to_type(typed, answer):
    """An option is also found by a word of its description, and a text that needs quotes is shown with them."""
    with pytest.raises(ConfigError) as caught:
        compose([typed])
    assert answer in str(caught.value)
    if answer.startswith("'"):
        assert compose([answer.strip("'")]).config.env.eval_split == "heldout[:4]"
