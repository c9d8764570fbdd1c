"""What the ranks of the distributed tests do.

Every case leaves FOLDER/CASE.json (rank 0 alone). `run_ranks` starts all ranks and waits, with a time limit.
"""

import json
import os
import random
import re
import signal
import sys
import time
import traceback
from contextlib import ExitStack
from dataclasses import asdict, replace

import pytest

from swe_rl.host.addresses import held_port, port_of
from swe_rl.trainer.ranks.forked import ForkServer
from tests.support.spare import RANKS

VOCAB = 64
_FOLLOW_S = 3.0


def build(seed=0, tie=True, heads=4, kv_heads=2, layers=2, experts=0):
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(seed)
    numbers = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "tie_word_embeddings": tie,
        "initializer_range": 0.2,
        "attn_implementation": "sdpa",
    }
    if not experts:
        return Qwen3ForCausalLM(Qwen3Config(**numbers))
    own = {"num_experts": experts, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**numbers, **own))


def rows(groups=3, per_group=4, longest=40, credit=False):
    """Rows of uneven length; one trajectory is split in two, one group is degenerate.

    `credit`: each token has its own advantage, and a reward.
    """
    from swe_rl.algo.row import Row

    made = []
    for group in range(groups):
        for i in range(per_group):
            rng = random.Random(f"{group}/{i}")
            length = rng.randint(6, longest)
            mask = [0, 0, 0, 1] + [int(rng.random() < 0.6) for _ in range(length - 4)]
            advantage = 0.0 if group == 2 else (1.5, -0.5, -0.5, -0.5)[i % 4]
            made.append(
                Row(
                    trajectory_id=f"{group}.{i}",
                    group_id=f"g{group}",
                    token_ids=tuple(rng.randrange(VOCAB) for _ in range(length)),
                    loss_mask=tuple(mask),
                    rollout_logprobs=tuple(-rng.uniform(2, 6) * m for m in mask),
                    advantage=advantage,
                    weight_versions=(0,) * sum(mask),
                )
            )
    made[1] = replace(made[1], trajectory_id=made[0].trajectory_id, advantage=float(made[0].advantage[0]))
    return [credited(row) for row in made] if credit else made


def credited(row):
    import numpy as np

    rng = np.random.default_rng(int(row.token_ids.sum()))
    values = rng.normal(size=(2, row.sampled_tokens))
    return replace(row, advantage=values[0] * (row.advantage != 0), rewards=values[1])


def routed(row, experts=5, layers=2, active=2):
    """Random experts, of which some are not known; one row has none at all."""
    import numpy as np

    rng = np.random.default_rng(int(row.token_ids.sum()))
    scores = rng.random((len(row.token_ids) - 1, layers, experts))
    routes = np.argsort(scores)[..., :active].astype(np.uint8)
    routes[rng.random(routes.shape[:2]) < 0.2] = 255
    return row if row.trajectory_id == "1.2" else replace(row, routes=routes)


def crowded(row, layers=2):
    """Every token to experts 0 and 1: of ranks that share the experts, the last one gets none."""
    import numpy as np

    return replace(row, routes=np.tile(np.arange(2, dtype=np.uint8), (len(row.token_ids) - 1, layers, 1)))


def rows_of(case):
    made = rows(credit="credit" in case.split("_"))
    if "crowded" in case.split("_"):
        return [crowded(row) for row in made]
    return [routed(row) for row in made] if "routed" in case.split("_") else made


def settings(case):
    """The configuration of a case by the words of its name."""
    from swe_rl.config.choices import (
        AdvantageKind,
        Correction,
        KlPlace,
        LossAggregation,
        MaskLevel,
        OptimizerState,
        PolicyLoss,
        RoutingReplay,
    )
    from swe_rl.config.schema import AlgoConfig, TrainerConfig

    words = case.split("_")
    tokens = micro_batch_tokens(case)
    config = TrainerConfig(lr=1e-3, num_threads=1, grad_clip=1.0, weight_decay=0.01, max_tokens_per_micro_batch=tokens)
    if "minis" in words:
        config = replace(config, prompts_per_mini_batch=1)
    if {"routed", "crowded"} & set(words):
        config = replace(config, routing_replay=RoutingReplay.replay)
    for state in {"bfloat16", "int8"} & set(words):
        config = replace(config, optimizer_state=OptimizerState(state))
    if "recompute" in words:
        config = replace(config, activation_checkpointing=True)
    algo = AlgoConfig()
    if "lora" in words:
        config = replace(config, lr=1e-2, lora_rank=3, seed=4)
    if "kl" in words:
        algo = replace(algo, kl_coef=0.1, kl_in=KlPlace.loss, entropy_coef=0.01)
    for word, mode in {"promptmean": LossAggregation.prompt_mean, "tokensum": LossAggregation.token_sum}.items():
        if word in words:
            algo = replace(algo, loss_aggregation=mode)
    if "balanced" in words:
        algo = replace(algo, balance_coef=0.2)
    if "tis" in words:
        algo = replace(algo, correction=Correction.sequence_tis, correction_cap=2.0)
    for word, loss in {"gspo": PolicyLoss.gspo, "gspotoken": PolicyLoss.gspo_token, "cispo": PolicyLoss.cispo}.items():
        if word in words:
            algo = replace(algo, policy_loss=loss)
    if "geometric" in words:
        algo = replace(algo, mask_level=MaskLevel.geometric, mask_low=0.4, mask_high=2.5)
    if "stale" in words:
        algo = replace(algo, stale_correction=Correction.token_tis)
    if "ppo" in words:
        algo = replace(algo, advantage=AdvantageKind.gae, gae_lambda=0.9, critic_epochs=2, critic_warmup_steps=1)
    if "teacher" in words:
        algo = replace(algo, advantage=AdvantageKind.teacher)
    model = {"tie": "untied" not in words}
    if "mixture" in words:
        model["experts"] = 6 if number(case, "ep", 1) > 1 else 5  # of which two ranks have three, or three and two
    if "mqa" in words:
        model["kv_heads"] = 1
    return config, algo, model


def number(case, of, otherwise=None):
    """The one behind `of` in a word of the name."""
    return next((int(found[1]) for word in case.split("_") if (found := re.fullmatch(rf"{of}(\d+)", word))), otherwise)


def micro_batch_tokens(case):
    """So few that an update adds up several micro-batches of each rank, wherever there are more rows than ranks."""
    words, sp = case.split("_"), number(case, "sp", 1)
    if "large" in words:
        return 4096
    if "minis" in words:
        return 48 // sp
    return 64 if sp * number(case, "dp", 1) <= 2 else 40


def run_steps(trainer, case):
    """Two; a case with a checkpoint goes on to a third one."""
    steps, all_rows = 3 if "checkpoint" in case.split("_") else 2, rows_of(case)
    metrics = [asdict(trainer.train_step(all_rows, step)) for step in range(steps)]
    for one in metrics:
        one.pop("train_s")
    return metrics


def plain(case):
    """The reference: this process alone, padded micro-batches."""
    from swe_rl.trainer.lora import with_adapter
    from swe_rl.trainer.policy import Trainer

    config, algo, shape = settings(case)
    model, adapter = build(0, **shape), None
    if config.lora_rank:
        model, adapter = with_adapter(model, config)
    reference = build(1, **shape) if algo.kl_coef and not adapter else None
    others = {"reference": reference, "adapter": adapter, **found_by_trainer(case)}
    trainer = Trainer(model, config, algo, pad_token_id=0, temperature=0.9, **others)
    return result_of(trainer, case)


def found_by_trainer(case, seed=0):
    """A teacher, or a critic with values of its own, where the case has one."""
    from torch import nn

    from swe_rl.config.choices import AdvantageKind
    from swe_rl.trainer.critic import attach_value_head

    _, algo, shape = settings(case)
    made = {}
    if algo.advantage is AdvantageKind.teacher:
        made["teacher"] = build(2, **shape)
    if algo.advantage is AdvantageKind.gae:
        made["critic"] = build(seed + 3, **shape)
        attach_value_head(made["critic"])
        nn.init.constant_(made["critic"].value_head.weight, 0.2)
    return made


def result_of(trainer, case):
    """Steps, then what they made of the model: the merged weights where it has an adapter, and that one alone."""
    from swe_rl.trainer.lora import adapter_alone
    from swe_rl.trainer.sharded.mesh import gather_whole

    metrics = run_steps(trainer, case)
    kl = trainer.sequence_kl(rows_of(case)) if trainer.algo.kl_coef else {}
    weights = trainer.engine_weights() if trainer.adapter else trainer.policy_weights()
    if trainer.adapter:
        weights = dict(weights) | adapter_alone(trainer.named_parameters())
    weights = dict(weights) | (trainer.critic.parameters() if trainer.critic else {})
    return {
        "metrics": metrics,
        "weights": {name: gather_whole(one).tolist() for name, one in weights.items()},
        "kl": kl,
    }


def sharded_trainer(case, mesh, seed=0):
    import torch

    from swe_rl.trainer.compute import ShardedCompute
    from swe_rl.trainer.lora import attach_adapter
    from swe_rl.trainer.policy import Trainer
    from swe_rl.trainer.sharded.attention import by_row
    from swe_rl.trainer.sharded.model import ShardedModel

    config, algo, shape = settings(case)

    model = build(seed, **shape)
    adapter = attach_adapter(model, config) if config.lora_rank else None

    def spread(model, values=False):
        return ShardedModel(model, mesh, by_row, compute_dtype=torch.float32, values=values)

    trainer = Trainer(
        spread(model),
        config,
        algo,
        pad_token_id=0,
        temperature=0.9,
        reference=spread(build(1, **shape)) if algo.kl_coef and not adapter else None,
        adapter=adapter,
        compute=ShardedCompute(mesh, cost_per_token=100.0),
        **{name: spread(model, name == "critic") for name, model in found_by_trainer(case, seed).items()},
    )
    count_micro_batches(trainer)
    return trainer


def count_micro_batches(trainer):
    """`trainer.micro_batches`: those of this rank in each update."""
    trainer.micro_batches, update_all = [], trainer._update_all

    def counted(plan, *rest, **named):
        trainer.micro_batches += map(len, plan)
        update_all(plan, *rest, **named)

    trainer._update_all = counted


def whole_weights(trainer):
    from swe_rl.trainer.sharded.mesh import gather_whole

    tensors = trainer.policy_weights() | (trainer.critic.parameters() if trainer.critic else {})
    return {name: gather_whole(tensor).tolist() for name, tensor in tensors.items()}


def sharded(case, mesh, folder):
    trainer = sharded_trainer(case, mesh)
    return what_is_left(trainer, case, mesh, folder) | {"micro_batches": trainer.micro_batches}


def what_is_left(trainer, case, mesh, folder):
    from swe_rl.trainer.sharded.mesh import make_mesh

    if "checkpoint" in case.split("_"):
        return continued(case, mesh, folder / case, trainer)
    if "regrouped" in case.split("_"):
        apart = make_mesh(mesh.sp, mesh.device)
        there = continued(case, mesh, folder / case / "there", trainer, apart)
        return {
            "there": there,
            "back": continued(case, apart, folder / case / "back", sharded_trainer(case, apart), mesh),
        }
    result = result_of(trainer, case)
    if "held" in case.split("_"):
        result["ranks"] = held_by_rank(trainer, mesh)
    if "written" in case.split("_"):
        result["announced"] = written(trainer, mesh, folder / case)
    return result


def held_by_rank(trainer, mesh):
    """What each rank has: bytes of weights and of optimizer state, and what tells whether two have the same values."""
    import hashlib

    import torch.distributed as dist

    from swe_rl.trainer.sharded.mesh import local_shard

    weights = {name: local_shard(tensor) for name, tensor in trainer.named_parameters().items()}
    state = {name: local_shard(tensor) for name, tensor in trainer.state_dict()["tensors"].items()}
    digest = hashlib.sha256()
    for name, tensor in sorted((weights | state).items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    sizes = [sum(tensor.nbytes for tensor in tensors.values()) for tensors in (weights, state)]
    found = [None] * mesh.world
    dist.all_gather_object(found, {"replica": mesh.replica, "bytes": sizes, "digest": digest.hexdigest()})
    return found


def written(trainer, mesh, folder):
    """What a folder for engines has, and what is said of it to those that take the weights another way."""
    import torch

    from swe_rl.trainer.send.hand_over import write_weights
    from swe_rl.trainer.send.wire import announce_tensors

    folder.mkdir(exist_ok=True)
    write_weights(trainer.engine_weights(), mesh, folder, {})
    return {tensor.name: list(tensor.shape) for tensor in announce_tensors(trainer.engine_weights(), {}, torch.float32)}


def continued(case, mesh, folder, trainer, other_mesh=None):
    """Two steps, a checkpoint in the background, a third step; then that third step again from the checkpoint.

    `other_mesh`: in which the checkpoint is read.
    """
    from swe_rl.trainer.checkpoint.checkpoints import Checkpoints

    checkpoints = Checkpoints(mesh, timeout_s=30)
    for step in (1, 2):
        trainer.train_step(rows_of(case), step)
        saved = checkpoints.save(folder, trainer, keep=1, **save_arguments(step))
    third = asdict(trainer.train_step(rows_of(case), 3))
    checkpoints.wait()
    seed = 0 if trainer.adapter else 5  # the base is not in a checkpoint
    other = sharded_trainer(case, other_mesh or mesh, seed=seed)
    found = checkpoints.load(saved, other)
    again = asdict(other.train_step(rows_of(case), 3))
    return {
        "third": third | {"train_s": 0},
        "again": again | {"train_s": 0},
        "step": found.step,
        "data_order": found.data_order,
        "weights": whole_weights(trainer),
        "weights_again": whole_weights(other),
    }


def save_arguments(step):
    return {"step": step, "weight_version": step, "data_order": {"next": step}, "config": {"lr": 1}}


def one_rank(rank, world, port, folder, cases, link):
    """As a process of its own, which ends with it."""
    import torch

    from swe_rl.trainer.sharded.mesh import make_mesh, process_group

    link.send(hash("a name"))
    torch.set_num_threads(1)
    device = torch.device("cpu")
    status = 1
    try:
        with process_group(rank, world, device, f"127.0.0.1:{port}", timeout_s=120):
            meshes = {}
            for case in cases:
                sp, *ways = number(case, "sp"), number(case, "ep", 1), number(case, "shard")
                if (sp, *ways) not in meshes:
                    meshes[sp, *ways] = make_mesh(sp, device, *ways)
                started = time.monotonic()
                result = sharded(case, meshes[sp, *ways], folder)
                if rank == 0:
                    result["seconds"] = time.monotonic() - started
                    (folder / f"{case}.json").write_text(json.dumps(result))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def family_rank(rank, world, port, folder, cases, link):
    """In place of `one_rank`: each case is a family, whose saved model `folder` has; two steps, and what is sent."""
    import torch

    from swe_rl.config.schema import AlgoConfig, ModelConfig, TrainerConfig
    from swe_rl.model.stored_names import model_without_weights
    from swe_rl.trainer.send.hand_over import gather_tensors
    from swe_rl.trainer.sharded import assemble
    from swe_rl.trainer.sharded.mesh import make_mesh, process_group

    link.send(hash("a name"))
    torch.set_num_threads(1)
    device = torch.device("cpu")
    status = 1
    try:
        with process_group(rank, world, device, f"127.0.0.1:{port}", timeout_s=120):
            mesh = make_mesh(1, device)
            for case in cases:
                assemble.load_shape = lambda _, case=case: model_without_weights(folder / case).config
                model = ModelConfig(path=str(folder / case))
                config = TrainerConfig(lr=1e-3, num_threads=1, activation_checkpointing=True)
                trainer = assemble.sharded_trainer(model, config, AlgoConfig(), mesh, pad_token_id=0, temperature=1.0)
                result = {"norms": [trainer.train_step(rows(), step).grad_norm for step in (1, 2)]}
                result["logprobs"] = trainer.token_logprobs(rows(), 1.0)
                sent = dict(gather_tensors(trainer.engine_weights(), torch.float32, trainer._layout))
                result["sums"] = {name: float(tensor.abs().sum()) for name, tensor in sent.items()}
                if rank == 0:
                    (folder / f"{case}.json").write_text(json.dumps(result))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def crash_once(rank, world, port, folder, cases, link):
    """In place of `one_rank`: at first rank 1 crashes, and rank 0 has failed before that is known."""
    link.send(hash("a name"))
    again = (folder / "again").exists()
    if rank == 1 and not again:
        time.sleep(0.3)
        (folder / "again").touch()
        signal.raise_signal(signal.SIGSEGV)
    os._exit(0 if again else 1)


def run_ranks(world, folder, cases, timeout_s=600.0, seeds=1, work=one_rank):
    """Starts `world` processes and returns what they left; a rank that fails or hangs ends all of them.

    `seeds`: so many different ones their hashes have, the first that of the process that others are forked from, too.
    A crash starts them once more: gloo's own thread (torch 2.13) was seen to end a rank. One of ours comes again.
    """
    until = time.monotonic() + timeout_s
    statuses = _until_the_end(world, folder, cases, until, seeds, work)
    if -signal.SIGSEGV in statuses:
        statuses = _until_the_end(world, folder, cases, until, seeds, work)
    assert not any(statuses), (statuses, _said(folder))
    return {case: json.loads((folder / f"{case}.json").read_text()) for case in cases}


def _until_the_end(world, folder, cases, until, seeds, work):
    """The ranks' statuses; None: it had to be ended, because another one failed."""
    here = os.environ.get("PYTHONHASHSEED")
    others = [seed for seed in map(str, range(71, 71 + seeds)) if seed != here]
    with ExitStack() as stack:
        port = port_of(stack.enter_context(held_port()))
        servers = [_server(stack, folder, cases, seed) for seed in (None, *others[: seeds - 1])]
        given = [(rank, world, port, folder, cases) for rank in range(world)]
        started = [servers[one[0] % seeds].start(work, one) for one in given]
        ranks = [rank for rank, _ in started]
        while any(rank.is_alive() for rank in ranks) and not any(rank.exitcode for rank in ranks):
            assert time.monotonic() < until, _said(folder)
            time.sleep(0.05)
        lost = time.monotonic() + _FOLLOW_S  # who lost a companion may be known to have ended before that one is
        while any(rank.is_alive() for rank in ranks) and time.monotonic() < lost:
            time.sleep(0.05)
        statuses = [rank.exitcode for rank in ranks]
        hashes = 0 if any(statuses) else len({link.recv() for _, link in started})
        assert hashes in (0, seeds), f"{hashes} seeds, not {seeds}: is a rank not forked (the log)?\n{_said(folder)}"
        return statuses


def _said(folder):
    return (folder / "ranks.log").read_text()


def _server(stack, folder, cases, seed):
    modules = (*RANKS, "peft") if any("lora" in case for case in cases) else RANKS
    with pytest.MonkeyPatch.context() as patch:
        if seed is not None:
            patch.setenv("PYTHONHASHSEED", seed)
        server = ForkServer(modules, folder / "ranks.log")
    stack.callback(server.close)
    return server
