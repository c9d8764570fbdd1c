"""Several processes compute what one computes: losses, metrics and weights after two steps, of which the second
knows the moments of the first."""

import json
from dataclasses import replace
from importlib.util import find_spec
from math import prod

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from swe_rl.config.compose import compose
from swe_rl.facts import memory
from swe_rl.model.experts import HubNamed
from swe_rl.trainer.checkpoint.checkpoints import Checkpoints
from swe_rl.trainer.checkpoint.export import export_checkpoint
from swe_rl.trainer.sharded.mesh import gather_whole, make_mesh, process_group

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the start of several processes

CASES = (
    "dp2_sp1",
    "dp1_sp2",
    "dp1_sp2_mqa_large",
    "dp2_sp1_minis_kl",
    "dp2_sp1_minis_kl_promptmean",
    "dp1_sp2_promptmean_untied_large",
    "dp2_sp1_minis_tokensum",
    "dp2_sp1_tis_untied_large",
    "dp1_sp2_minis_tis_kl_recompute",
    "dp2_sp1_lora_minis_kl_recompute",
    "dp1_sp2_lora_untied_large",
    "dp2_sp1_mixture_minis_kl",
    "dp1_sp2_mixture_untied_recompute_large",
    "dp2_sp1_mixture_lora_untied",
    "dp2_sp1_mixture_routed_minis_kl",
    "dp1_sp2_mixture_routed_recompute",
    "dp2_sp1_ep2_mixture_minis_kl",
    "dp1_sp2_ep2_mixture_routed_untied_recompute_large",
    "dp2_sp1_ep2_mixture_lora_untied",
    "dp2_sp1_ep2_mixture_ppo_credit",
    "dp2_sp1_ep2_mixture_untied_written",
    "dp1_sp2_mixture_routed_balanced_minis",
    "dp2_sp1_ep2_mixture_balanced_recompute_lora_untied",
    "dp2_sp1_ep2_mixture_balanced_recompute",
    "dp2_sp1_minis_credit",
    "dp1_sp2_credit_large",
    "dp2_sp1_ppo_credit_minis",
    "dp1_sp2_ppo_credit_untied_large",
    "dp2_sp1_teacher_minis",
    "dp1_sp2_teacher_lora_untied",
)
# Combinations of what the other cases have, too: these are run by name.
MIXED = {
    "dp2_sp1_minis_kl_promptmean",
    "dp2_sp1_minis_tokensum",
    "dp1_sp2_promptmean_untied_large",
    "dp1_sp2_lora_untied_large",
    "dp1_sp2_mixture_untied_recompute_large",
    "dp2_sp1_mixture_lora_untied",
    "dp2_sp1_mixture_routed_minis_kl",
    "dp2_sp1_ep2_mixture_lora_untied",
    "dp2_sp1_ep2_mixture_balanced_recompute",
    "dp1_sp2_mixture_routed_balanced_minis",
    "dp2_sp1_minis_credit",
    "dp2_sp1_ppo_credit_minis",
    "dp1_sp2_teacher_lora_untied",
}
# Losses and masks that look at whole trajectories, whose tokens are on several ranks.
WHOLE = ("dp2_sp1_minis_gspo_tis", "dp1_sp2_minis_gspotoken_geometric", "dp1_sp2_minis_cispo_stale")


CHECKPOINT = "dp2_sp1_checkpoint"
ADAPTER = "dp2_sp1_lora_kl_checkpoint"
MIXTURE = "dp2_sp1_mixture_untied_checkpoint"
SPREAD = "dp2_sp1_ep2_mixture_untied_checkpoint"
REGROUPED = "dp2_sp1_ep2_mixture_minis_regrouped"
CROWDED = "dp2_sp1_ep2_mixture_crowded_recompute"
CRITIC = "dp2_sp1_ppo_credit_untied_checkpoint"
HELD = "dp4_sp1_shard2_held"  # two replicas of two ranks
REPLICATED = "dp4_sp1_shard2_ppo_credit_untied_checkpoint"
REPLICAS = (
    HELD,
    "dp4_sp1_shard1",
    "dp2_sp2_shard2_minis_tis_kl",
    "dp4_sp1_shard2_ep2_mixture_untied_recompute",
    "dp4_sp1_shard2_lora_minis_kl_recompute",
)
FOUR = ("dp2_sp2_minis_tis_kl", "dp1_sp4_mqa", "dp2_sp2_ep2_mixture_untied_recompute", "dp4_sp1", *REPLICAS)
COMPACT_REPLICAS = "dp4_sp1_shard2_ep2_mixture_untied_int8_checkpoint"
FROM_REPLICAS = "dp4_sp1_shard2_minis_regrouped"
COMPACT = ("dp2_sp1_ppo_credit_bfloat16_checkpoint", "dp2_sp1_ep2_mixture_untied_int8_checkpoint")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def two_ranks(request, rank_cases, folder):
    """All cases in one pair of processes, because starting them takes most of the time. They have different seeds for
    their hashes, as ranks of several nodes have: an order by hashes would be another one on each of them."""
    cases = (*CASES, *WHOLE, CHECKPOINT, ADAPTER, MIXTURE, SPREAD, REGROUPED, CROWDED, CRITIC, *COMPACT)
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    asked = {item.callspec.params.get("case") for item in items}
    possible = [case for case in cases if "lora" not in case or find_spec("peft")]
    chosen = [case for case in possible if case not in MIXED or case in asked]
    return rank_cases.run_ranks(2, folder, chosen, seeds=2)


@pytest.fixture(autouse=True)
def needs_peft(request):
    if "lora" in request.node.name:
        request.getfixturevalue("peft")


@pytest.fixture
def one_rank():
    """A mesh of this process alone."""
    with process_group(0, 1, torch.device("cpu")):
        yield make_mesh(1, torch.device("cpu"))


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] if case in MIXED else []) for case in CASES]
)
def test_two_processes_are_one(rank_cases, two_ranks, case):
    # AdamW makes a step of its full size of a gradient near 0, which opposite credit or pulls leave: rounding shows.
    opposite = {"credit", "balanced"} & set(case.split("_"))
    compare(rank_cases.plain(case), two_ranks[case], atol=5e-5 if opposite else 1e-5)


def test_updates_of_two_ranks_add_several_micro_batches(two_ranks):
    assert not single(two_ranks)


@pytest.mark.parametrize("case", WHOLE)
def test_whole_trajectories_of_several_ranks_are_one(rank_cases, two_ranks, case):
    expected = rank_cases.plain(case)
    compare(expected, two_ranks[case])
    assert any(one["ratio_max"] > 1.0 for one in expected["metrics"])


@pytest.mark.parametrize("case", [CHECKPOINT, ADAPTER, MIXTURE, SPREAD, CRITIC, *COMPACT])
def test_a_checkpoint_continues_exactly(two_ranks, case):
    found = two_ranks[case]
    assert (found["step"], found["data_order"]) == (2, {"next": 2})
    assert found["again"] == found["third"]
    assert found["weights_again"] == found["weights"]


@pytest.mark.parametrize("case", COMPACT)
def test_moments_of_few_bits_are_those_of_one_process(rank_cases, two_ranks, case):
    """Rounding of a gradient's sum may tip a moment over to the next value that it can rest as."""
    expected, got = rank_cases.plain(case)["weights"], two_ranks[case]["weights"]
    assert expected.keys() == got.keys()
    for name, weights in expected.items():
        torch.testing.assert_close(torch.tensor(got[name]), torch.tensor(weights), rtol=0, atol=2e-4, msg=name)


@pytest.mark.parametrize(("case", "seed"), [(CHECKPOINT, 7), (ADAPTER, 0), (MIXTURE, 7), (SPREAD, 7), (CRITIC, 7)])
def test_a_checkpoint_of_two_ranks_is_read_by_one(rank_cases, two_ranks, folder, one_rank, case, seed):
    saved = folder / case / "step_000002"
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]  # pruned, nothing left behind
    trainer = rank_cases.sharded_trainer(case, one_rank, seed=seed)
    Checkpoints(one_rank).load(saved, trainer)
    trainer.train_step(rank_cases.rows_of(case), 3)
    expected = two_ranks[case]["weights"]
    for name, weights in rank_cases.whole_weights(trainer).items():
        torch.testing.assert_close(torch.tensor(weights), torch.tensor(expected[name]), rtol=0, atol=1e-5)


def test_ranks_without_a_token_take_part(rank_cases, two_ranks):
    expected, got = rank_cases.plain(CROWDED), two_ranks[CROWDED]
    assert expected["metrics"][0]["expert_unused_rate"] == pytest.approx(4 / 6)
    for weights in (expected["weights"], got["weights"]):  # routers of what is never chosen have rounding as gradient
        for name in [name for name in weights if name.endswith("mlp.gate.weight")]:
            weights[name] = weights[name][:2]
    compare(expected, got)


@pytest.mark.parametrize("way", ["there", "back"])
def test_a_checkpoint_is_read_by_ranks_that_share_experts_otherwise(two_ranks, way):
    result = two_ranks[REGROUPED][way]
    assert known(result["again"]) == pytest.approx(known(result["third"]), rel=1e-5, abs=1e-5)
    for name, weights in result["weights"].items():
        again = torch.tensor(result["weights_again"][name])
        torch.testing.assert_close(again, torch.tensor(weights), rtol=0, atol=1e-5, msg=name)


def test_engines_get_whole_experts_of_ranks_that_share_them(two_ranks, folder):
    case = "dp2_sp1_ep2_mixture_untied_written"
    tensors = {name: one for path in (folder / case).glob("*.safetensors") for name, one in load_file(path).items()}
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    assert shapes == two_ranks[case]["announced"]
    expected = HubNamed({name: torch.tensor(one) for name, one in two_ranks[case]["weights"].items()})
    assert tensors.keys() == expected.keys() and "model.layers.0.mlp.experts.5.up_proj.weight" in tensors
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0, msg=name)


def test_an_export_of_ranks_that_share_experts_is_the_trained_model(rank_cases, two_ranks, folder, one_rank, tmp_path):
    saved = folder / SPREAD / "step_000002"
    _, _, shape = rank_cases.settings(SPREAD)
    rank_cases.build(3, **shape).save_pretrained(tmp_path / "base")
    export_checkpoint(saved, tmp_path / "base", tmp_path / "out", dtype=torch.float32)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="float32").state_dict()
    trainer = rank_cases.sharded_trainer(SPREAD, one_rank, seed=7)
    Checkpoints(one_rank).load(saved, trainer)
    for name, tensor in trainer.policy_weights().items():
        assert torch.equal(loaded[name], gather_whole(tensor)), name


@pytest.fixture(scope="module")
def four_ranks(rank_cases, folder):
    cases = (*FOUR, REPLICATED, COMPACT_REPLICAS, FROM_REPLICAS)
    chosen = [case for case in cases if "lora" not in case or find_spec("peft")]
    return rank_cases.run_ranks(4, folder, chosen)


@pytest.mark.parametrize("case", FOUR)
def test_four_processes_are_one(rank_cases, four_ranks, case):
    compare(rank_cases.plain(case), four_ranks[case])


def test_updates_of_four_ranks_add_several_micro_batches(four_ranks):
    """All but those of four rows, of which each of four ranks has one."""
    assert set(single(four_ranks)) <= {FROM_REPLICAS, "dp4_sp1_shard2_lora_minis_kl_recompute"}


def test_two_replicas_of_two_ranks_are_one_of_four(four_ranks):
    compare(four_ranks["dp4_sp1"], four_ranks[HELD])


def test_replicas_have_the_same_bits_and_what_the_plan_gives_a_rank(rank_cases, four_ranks):
    ranks = four_ranks[HELD]["ranks"]
    assert [rank["replica"] for rank in ranks] == [0, 0, 1, 1]
    assert [rank["digest"] for rank in ranks[:2]] == [rank["digest"] for rank in ranks[2:]]
    assert ranks[0]["digest"] != ranks[1]["digest"]
    params = sum(parameter.numel() for parameter in rank_cases.build(0).parameters())
    for shards, words in ((2, ("layout.shard_ranks=2",)), (4, ())):
        config = compose(["layout=dp4", *words]).config
        config = replace(config, model=replace(config.model, params_b=params / 1e9))
        planned = memory.states_gb_per_gpu(config) * 1e9
        assert planned == pytest.approx(16 * params / shards)
    for weights, state in [rank["bytes"] for rank in ranks]:
        steps = 4 * len(list(rank_cases.build(0).parameters()))
        assert 2 * weights + state - steps == 16 * params / 2  # gradients are as large as weights


@pytest.mark.parametrize("case", [REPLICATED, COMPACT_REPLICAS])
def test_replicas_write_each_row_once_and_go_on_exactly(four_ranks, folder, case):
    found = four_ranks[case]
    assert found["again"] == found["third"] and found["weights_again"] == found["weights"]
    saved = folder / case / "step_000002"
    index = json.loads((saved / "shards.json").read_text())
    written = dict.fromkeys(index, 0)
    for path in saved.glob("shard_*_of_00004.safetensors"):
        for name, tensor in load_file(path).items():
            written[name] += tensor.numel()
    assert written == {name: prod(entry["shape"]) for name, entry in index.items()}
    sizes = [path.stat().st_size for path in saved.glob("shard_*.safetensors")]
    assert len(sizes) == 4 and max(sizes) < 1.7 * min(sizes)  # all of them write


def test_a_checkpoint_of_two_replicas_is_read_by_one_rank(rank_cases, four_ranks, folder, one_rank):
    trainer = rank_cases.sharded_trainer(REPLICATED, one_rank, seed=7)
    Checkpoints(one_rank).load(folder / REPLICATED / "step_000002", trainer)
    trainer.train_step(rank_cases.rows_of(REPLICATED), 3)
    for name, weights in rank_cases.whole_weights(trainer).items():
        expected = torch.tensor(four_ranks[REPLICATED]["weights"][name])
        torch.testing.assert_close(torch.tensor(weights), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("way", ["there", "back"])
def test_ranks_without_replicas_go_on_with_a_checkpoint_of_replicas_and_back(four_ranks, way):
    result = four_ranks[FROM_REPLICAS][way]
    assert known(result["again"]) == pytest.approx(known(result["third"]), rel=1e-5, abs=1e-5)
    for name, weights in result["weights"].items():
        again = torch.tensor(result["weights_again"][name])
        torch.testing.assert_close(again, torch.tensor(weights), rtol=0, atol=1e-5, msg=name)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_replicas_of_ranks_that_share_experts_in_several_groups_are_one(rank_cases, tmp_path):
    """Eight ranks: of each of two replicas, two groups that have all experts once."""
    case, regrouped = "dp8_sp1_shard4_ep2_mixture_untied_held", "dp8_sp1_shard4_ep2_mixture_minis_regrouped"
    found = rank_cases.run_ranks(8, tmp_path, (case, regrouped), timeout_s=900.0)
    compare(rank_cases.plain(case), found[case])
    digests = [rank["digest"] for rank in found[case]["ranks"]]
    assert digests[:4] == digests[4:] and len(set(digests)) == 4
    for way in ("there", "back"):
        result = found[regrouped][way]
        for name, weights in result["weights"].items():
            again = torch.tensor(result["weights_again"][name])
            torch.testing.assert_close(again, torch.tensor(weights), rtol=0, atol=1e-5, msg=name)


def test_ranks_are_started_once_more_after_a_crash_that_another_one_seems_to_have_failed_before(rank_cases, tmp_path):
    assert rank_cases.run_ranks(2, tmp_path, (), timeout_s=60.0, work=rank_cases.crash_once) == {}


def single(found):
    """Cases that are meant to have several micro-batches of a rank in each update, and have not."""
    counts = {case: one["micro_batches"] for case, one in found.items() if "large" not in case}
    return {case: numbers for case, numbers in counts.items() if min(numbers) < 2}


def known(metrics):
    """Without what a dense model has not: the load of experts."""
    return {key: value for key, value in metrics.items() if value is not None}


def compare(expected, got, atol=1e-5):
    """Adam divides by a gradient's size: a gradient of almost 0 makes a weight's rounding larger, of few weights."""
    assert len(expected["metrics"]) == 2
    for one, other in zip(expected["metrics"], got["metrics"], strict=True):
        assert known(other) == pytest.approx(known(one), rel=1e-5, abs=1e-5)
    assert got["kl"] == pytest.approx(expected["kl"], rel=1e-4, abs=1e-4)
    assert got["weights"].keys() == expected["weights"].keys()
    for name, weights in expected["weights"].items():
        off = (torch.tensor(got["weights"][name]) - torch.tensor(weights)).abs()
        assert off.max() <= 3 * atol and (off <= atol).double().mean() > 0.999, f"{name}: off by {off.max():.3g}"
