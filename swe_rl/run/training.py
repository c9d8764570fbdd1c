"""Makes a job's trainer: in this process, or ranks on GPUs, on other nodes, on the CPU; restarts one that is lost.

Invariants:
- Who uses it does not know which it is, and closes it on every exit.
- It is pure where it says who sits where: the layout decides, and CUDA_VISIBLE_DEVICES which of a node's GPUs that are.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from swe_rl.config.choices import AdvantageKind, EngineKind
from swe_rl.config.parts import Part, started_parts
from swe_rl.config.schema import Config
from swe_rl.engine.vllm.devices import visible_devices
from swe_rl.errors import RunError
from swe_rl.facts.schedule import by_step
from swe_rl.facts.sizes import shares_gpus
from swe_rl.hardware.slurm.nodes import names_of, node_address
from swe_rl.layout.placement import node_of_run, place_layout
from swe_rl.plan import duration
from swe_rl.run.session import RunSession
from swe_rl.trainer.trainer import RankLost, TrainsPolicy

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from swe_rl.trainer.rank_trainer import RankTrainer
    from swe_rl.trainer.ranks.group import TrainerGroup
    from swe_rl.trainer.ranks.ray_group import RayRanks
    from swe_rl.trainer.ranks.steps import RankSteps


# Restarts are those of a trainer whose ranks were lost: how many are left, and what each of them cost. Only a trainer
# that was up is started again: what fails at the first start would fail at the next one, too. It has no clock of its
# own.
class Restarts:
    """The restarts of one start of a run. `used` is the number so far."""

    def __init__(self, allowed: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.allowed = allowed
        self.used = 0
        self._clock = clock
        self._went_on_s: float | None = None
        self._done_at_s: Mapping[int, float] = MappingProxyType({})
        self._lost: RankLost | None = None

    def take(self, lost: RankLost) -> str:
        """Returns a line for the terminal. Raises `lost` where none is left."""
        if self._went_on_s is None or self.used >= self.allowed:
            raise lost
        self.used += 1
        self._lost = lost
        return f"trainer: rank {lost.rank} is lost ({lost.reason}); restart {self.used} of {self.allowed}"

    def went_on(self, step: int, done_at_s: Mapping[int, float]) -> dict[str, Any] | None:
        """Notes that the ranks are up, with the state after `step`. Returns the fields of `trainer_restart`, if it is
        one.

        `done_at_s` says when each step was done, filled by the loop as it goes. `lost_s` counts from the end of `step`
        until now: the work that is done again, and the restart.
        """
        now_s = self._clock()
        lost = self._lost
        self._lost = None
        fields = None
        if lost is not None:
            assert self._went_on_s is not None
            since_s = self._done_at_s.get(step, self._went_on_s)
            fields = {"step": step, "rank": lost.rank, "reason": lost.reason, "restart": self.used}
            fields |= {"lost_s": now_s - since_s}
        self._went_on_s = now_s
        self._done_at_s = done_at_s
        return fields


async def repeat_with_restarts(restarts: Restarts, session: RunSession, attempt: Callable[[], Awaitable[None]]) -> None:
    """Repeats `attempt` until one comes to its end. Raises RankLost where no restart is left."""
    while True:
        # It is a task of its own: what is cancelled inside it does not count as told to end.
        try:
            return await asyncio.ensure_future(attempt())
        except RankLost as lost:
            if _is_cancelled():
                raise
            session.progress.message(restarts.take(lost))


class Steps(Protocol):
    """The state that a job's loop tells. `done_at_s` has monotonic seconds of the steps that were done here."""

    step: int
    done_at_s: dict[int, float]

    def resume(self) -> None:
        """Goes to the newest checkpoint, or to the start. Raises CorruptCheckpointError."""
        ...


async def go_on(steps: Steps, session: RunSession, restarts: Restarts) -> None:
    """Goes on from the state of a run that is resumed, or that lost ranks; the trainer is up."""
    if session.resumed or restarts.used:
        await asyncio.to_thread(steps.resume)
    if (restarted := restarts.went_on(steps.step, steps.done_at_s)) is not None:
        session.record("trainer_restart", restarted)


def raise_lost(trainer: TrainsPolicy, error: RunError) -> None:
    """Raises the RankLost that `error` came from, if it did."""
    lost = trainer.failure()
    if isinstance(lost, RankLost) and lost is not error:
        raise lost from error


def _is_cancelled() -> bool:
    """Tells whether this task was told to end, while something else ended it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def trainer_ranks(config: Config) -> int:
    """Returns the number of processes that train; 0: this one does."""
    return config.layout.trainer_gpus or config.layout.trainer_ranks


def require_peft(config: Config) -> None:
    """Checks for peft before ranks are started, which could only fail without it. Raises UserError."""
    from swe_rl.trainer.lora import require_peft as require

    require(config.trainer)


async def start_trainer(config: Config, session: RunSession, trainer: TrainsPolicy) -> None:
    """Returns once its ranks are up. `close` stops them, also in the middle of it. Raises UserError, TrainerError."""
    if not trainer_ranks(config):
        return
    ranks = trainer_ranks(config)
    where = where_ranks_are(config, os.environ)
    session.progress.message(f"trainer starts: {ranks} rank{'s' * (ranks > 1)} on {where}")
    started_s = time.monotonic()
    with session.progress.phase("start_trainer"):
        await asyncio.to_thread(trainer.start)
    session.progress.message(f"trainer is up after {time.monotonic() - started_s:.0f} s")


def in_this_process(
    config: Config, device: str = "cpu"
) -> "tuple[PreTrainedModel, PreTrainedTokenizerFast, RankTrainer]":
    """Returns the model, its tokenizer, and the trainer of both on `device`. Raises UserError."""
    import torch

    from swe_rl.algo.foreign.loss import make_loss
    from swe_rl.model.load import has_teacher, load_model, load_tokenizer, model_folder, teacher_model
    from swe_rl.trainer.critic import attach_value_head
    from swe_rl.trainer.lora import base_of, with_adapter
    from swe_rl.trainer.rank_trainer import RankTrainer

    model = load_model(config.model)
    tokenizer = load_tokenizer(config.model)
    model = model.to(torch.device(device))  # type: ignore[arg-type]  # its decorator has lost the method
    policy = model
    adapter = None
    if config.trainer.lora_rank > 0:
        base = base_of(config.model, model_folder(config.model))
        policy, adapter = with_adapter(model, config.trainer, base)
    algo = config.algo
    teacher = None
    critic = None
    if has_teacher(algo):
        teacher = load_model(teacher_model(config.model, algo)).requires_grad_(False)
    if algo.advantage is AdvantageKind.gae:
        critic = load_model(config.model)
        attach_value_head(critic)
    trainer = RankTrainer(
        policy,
        config.trainer,
        config.algo,
        pad_token_id=pad_token_id(tokenizer),
        temperature=config.rollout.temperature,
        temperatures=by_step(config.rollout.schedule.temperature),
        reference=load_model(config.model).requires_grad_(False) if config.algo.kl_coef and not adapter else None,
        adapter=adapter,
        teacher=teacher,
        critic=critic,
        loss=make_loss(config.loss, config.algo),
    )
    return model, tokenizer, trainer


def rank_group(config: Config, session: RunSession, pad_token_id: int, restart: int) -> "TrainerGroup":
    """Returns the ranks, not started; each restart has logs of its own. Raises DeviceError."""
    from swe_rl.trainer.ranks.group import TrainerGroup
    from swe_rl.trainer.ranks.rank import RankSetup

    by_ray = config.hardware.ray_address is not None
    setup = RankSetup(
        model=config.model,
        trainer=replace(config.trainer, compile=duration.compiles_layers(config)),
        algo=config.algo,
        loss=config.loss,
        pad_token_id=pad_token_id,
        temperature=config.rollout.temperature,
        temperatures=by_step(config.rollout.schedule.temperature),
        rank=0,
        world=trainer_ranks(config),
        sp=config.layout.sequence_parallel,
        ep=config.layout.expert_parallel,
        shard_ranks=config.layout.shard_ranks,
        address="",
        device="cuda" if config.layout.trainer_gpus else "cpu",
        gpus=() if by_ray else trainer_gpus(config, os.environ),
        shares_gpus=shares_gpus(config),
        logs=session.folder.path / "trainer" / (f"restart{restart}" if restart else ""),
    )
    in_memory = config.engine.kind is EngineKind.embedded and Part.engines in started_parts(config)
    if by_ray:
        return TrainerGroup(setup, in_memory=in_memory, ranks=_ray_ranks(config, session))
    return TrainerGroup(setup, in_memory=in_memory, ranks=_step_ranks(config, session))


def _step_ranks(config: Config, session: RunSession) -> "RankSteps | None":
    """Returns ranks on several nodes; None where all ranks are on this node. Raises NodesError."""
    from swe_rl.trainer.ranks.steps import RankSite, RankSteps

    placement = place_layout(config)
    home_node = node_of_run(placement)
    away = [gpu.node for gpu in placement.trainer if gpu.node != home_node]
    what = f"layout={config.layout.name} puts ranks of the trainer"
    names = names_of(away, home_node, what, "choose a layout whose trainer fits one node", os.environ)
    if not names:
        return None
    sites = [RankSite(None if gpu.node == home_node else names[gpu.node], gpu.index) for gpu in placement.trainer]
    here = node_address(names[home_node])
    return RankSteps(sites, here, environ=os.environ, mig=config.hardware.mig, say=session.progress.message)


def _ray_ranks(config: Config, session: RunSession) -> "RayRanks":
    """Returns ranks on Ray, not connected. Raises DeviceError."""
    from swe_rl.trainer.ranks.ray_group import RayRanks, handed_on

    address = config.hardware.ray_address
    assert address is not None
    return RayRanks(
        address,
        environment=handed_on(os.environ, config.hardware.env_vars),
        engine_gpus=engine_gpus_here(config, os.environ),
        say=session.progress.message,
    )


def engine_gpus_here(config: Config, environ: Mapping[str, str]) -> frozenset[str]:
    """Returns this node's GPUs that engines of the run have, as CUDA_VISIBLE_DEVICES calls them. Raises DeviceError."""
    placement = place_layout(config)
    gpus_here = [gpu for gpus in placement.engines for gpu in gpus if gpu.node == node_of_run(placement)]
    device_lists = (visible_devices([gpu], environ, mig=config.hardware.mig) for gpu in gpus_here)
    return frozenset(device for devices in device_lists for device in devices.split(","))


def trainer_gpus(config: Config, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns what CUDA_VISIBLE_DEVICES is for each rank of this node; none without GPUs. Raises DeviceError.

    For ranks of other nodes it is empty: that is known there (`trainer/ranks/step`).
    """
    placement = place_layout(config)
    home_node = node_of_run(placement)
    mig = config.hardware.mig
    return tuple(visible_devices([gpu], environ, mig=mig) if gpu.node == home_node else "" for gpu in placement.trainer)


def where_ranks_are(config: Config, environ: Mapping[str, str]) -> str:
    """Returns text for people. GPUs have the names of CUDA_VISIBLE_DEVICES, as engines' have. Raises DeviceError."""
    if config.hardware.ray_address is not None:
        return "the Ray cluster"
    gpus = place_layout(config).trainer
    nodes = {gpu.node for gpu in gpus}
    if len(nodes) > 1:
        return f"{len(gpus)} GPUs of {len(nodes)} nodes"
    named = zip(gpus, trainer_gpus(config, environ), strict=True)
    if gpus:
        return f"GPU {', '.join(name or str(gpu.index) for gpu, name in named)}"
    return "the CPU"


def pad_token_id(tokenizer: "PreTrainedTokenizerFast") -> int:
    pad = tokenizer.pad_token_id
    # load_tokenizer refuses one without.
    assert isinstance(pad, int)
    return pad
