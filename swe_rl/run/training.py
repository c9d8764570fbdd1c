"""The trainer of a job: in this process, or ranks on GPUs, on other nodes, on the CPU; started again where one is lost.

Invariants:
- Who uses it does not know which it is, and closes it on every exit.
- Pure where it says who sits where: the layout decides, and CUDA_VISIBLE_DEVICES which of a node's GPUs that are.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from swe_rl.config.choices import Advantage, EngineKind
from swe_rl.config.parts import Part, starts
from swe_rl.config.schema import Config
from swe_rl.engine.vllm.devices import visible_devices
from swe_rl.errors import RunError
from swe_rl.hardware.slurm.nodes import address, names_of
from swe_rl.layout.placement import home, place
from swe_rl.plan import duration
from swe_rl.plan.sizes import shares_gpus
from swe_rl.run.session import Session
from swe_rl.trainer.protocol import RankLost, TrainsPolicy

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from swe_rl.trainer.rank_trainer import RankTrainer
    from swe_rl.trainer.ranks.group import TrainerGroup
    from swe_rl.trainer.ranks.ray_group import RayRanks
    from swe_rl.trainer.ranks.steps import RankSteps


# Restarts of a trainer whose ranks were lost: how many are left, and what each of them cost.
# - Only a trainer that was up is started again: what fails at the first start would fail at the next one, too.
# - No clock of its own.
class Restarts:
    """Of one start of a run. `used`: how many there were so far."""

    def __init__(self, allowed: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.allowed, self.used = allowed, 0
        self._clock = clock
        self._went_on_s: float | None = None
        self._done_at_s: Mapping[int, float] = MappingProxyType({})
        self._lost: RankLost | None = None

    def take(self, lost: RankLost) -> str:
        """A line for the terminal. Raises `lost` where none is left."""
        if self._went_on_s is None or self.used >= self.allowed:
            raise lost
        self.used += 1
        self._lost = lost
        return f"trainer: rank {lost.rank} is lost ({lost.reason}); restart {self.used} of {self.allowed}"

    def went_on(self, step: int, done_at_s: Mapping[int, float]) -> dict[str, Any] | None:
        """The ranks are up, with the state after `step`. The fields of `trainer_restart`; None for the first start.

        `done_at_s`: when each step was done, filled by the loop as it goes. `lost_s` counts from the end of `step`
        until now: the work that is done again, and the restart.
        """
        now_s, lost, self._lost = self._clock(), self._lost, None
        fields = None
        if lost is not None:
            assert self._went_on_s is not None
            since_s = self._done_at_s.get(step, self._went_on_s)
            fields = {"step": step, "rank": lost.rank, "reason": lost.reason, "restart": self.used}
            fields |= {"lost_s": now_s - since_s}
        self._went_on_s, self._done_at_s = now_s, done_at_s
        return fields


async def restarting(restarts: Restarts, session: Session, attempt: Callable[[], Awaitable[None]]) -> None:
    """Until an attempt comes to its end. Raises RankLost where no restart is left."""
    while True:
        try:  # a task of its own: what is cancelled inside it does not count as told to end
            return await asyncio.ensure_future(attempt())
        except RankLost as lost:
            if _is_cancelled():
                raise
            session.progress.message(restarts.take(lost))


class Steps(Protocol):
    """What a job's loop says of itself. `done_at_s`: monotonic, of the steps that were done here."""

    step: int
    done_at_s: dict[int, float]

    def resume(self) -> None:
        """To the newest checkpoint, or to the start. Raises CorruptCheckpointError."""
        ...


async def go_on(steps: Steps, session: Session, restarts: Restarts) -> None:
    """The trainer is up: from the state of a run that is resumed, or that lost ranks."""
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
    """This task was told to end, while something else ended it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def trainer_ranks(config: Config) -> int:
    """Processes that train; 0: this one does."""
    return config.layout.trainer_gpus or config.layout.trainer_ranks


def require_peft(config: Config) -> None:
    """Before ranks are started, which could only fail with it. Raises UserError."""
    from swe_rl.trainer.lora import require_peft as require

    require(config.trainer)


async def start_trainer(config: Config, session: Session, trainer: TrainsPolicy) -> None:
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
    """The model, its tokenizer, and the trainer of both on `device`. Raises UserError."""
    import torch

    from swe_rl.algo.foreign.loss import make_loss
    from swe_rl.model.load import has_teacher, load_model, load_tokenizer, model_folder, teacher_model
    from swe_rl.trainer.critic import attach_value_head
    from swe_rl.trainer.lora import base_of, with_adapter
    from swe_rl.trainer.rank_trainer import RankTrainer

    model, tokenizer = load_model(config.model), load_tokenizer(config.model)
    model = model.to(torch.device(device))  # type: ignore[arg-type]  # its decorator has lost the method
    policy, adapter = model, None
    if config.trainer.lora_rank > 0:
        base = base_of(config.model, model_folder(config.model))
        policy, adapter = with_adapter(model, config.trainer, base)
    algo, teacher, critic = config.algo, None, None
    if has_teacher(algo):
        teacher = load_model(teacher_model(config.model, algo)).requires_grad_(False)
    if algo.advantage is Advantage.gae:
        critic = load_model(config.model)
        attach_value_head(critic)
    trainer = RankTrainer(
        policy,
        config.trainer,
        config.algo,
        pad_token_id=pad(tokenizer),
        temperature=config.rollout.temperature,
        reference=load_model(config.model).requires_grad_(False) if config.algo.kl_coef and not adapter else None,
        adapter=adapter,
        teacher=teacher,
        critic=critic,
        loss=make_loss(config.loss, config.algo),
    )
    return model, tokenizer, trainer


def rank_group(config: Config, session: Session, pad_token_id: int, restart: int) -> "TrainerGroup":
    """Not started; each restart has logs of its own. Raises DeviceError."""
    from swe_rl.trainer.ranks.group import TrainerGroup
    from swe_rl.trainer.ranks.rank import RankSetup

    by_ray = config.hardware.ray_address is not None
    setup = RankSetup(
        model=config.model,
        trainer=replace(config.trainer, compile=duration.compiles(config)),
        algo=config.algo,
        loss=config.loss,
        pad_token_id=pad_token_id,
        temperature=config.rollout.temperature,
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
    in_memory = config.engine.kind is EngineKind.embedded and Part.engines in starts(config)
    ranks = _ray_ranks(config, session) if by_ray else _step_ranks(config, session)
    return TrainerGroup(setup, in_memory=in_memory, ranks=ranks)


def _step_ranks(config: Config, session: Session) -> "RankSteps | None":
    """None where all ranks are on this node. Raises NodesError."""
    from swe_rl.trainer.ranks.steps import RankSite, RankSteps

    placement = place(config)
    home_node = home(placement)
    away = [gpu.node for gpu in placement.trainer if gpu.node != home_node]
    what = f"layout={config.layout.name} puts ranks of the trainer"
    names = names_of(away, home_node, what, "choose a layout whose trainer fits one node", os.environ)
    if not names:
        return None
    sites = [RankSite(None if gpu.node == home_node else names[gpu.node], gpu.index) for gpu in placement.trainer]
    here = address(names[home_node])
    return RankSteps(sites, here, environ=os.environ, mig=config.hardware.mig, say=session.progress.message)


def _ray_ranks(config: Config, session: Session) -> "RayRanks":
    """Not connected. Raises DeviceError."""
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
    """This node's GPUs that engines of the run have, as CUDA_VISIBLE_DEVICES calls them. Raises DeviceError."""
    placement = place(config)
    gpus_here = [gpu for gpus in placement.engines for gpu in gpus if gpu.node == home(placement)]
    device_lists = (visible_devices([gpu], environ, mig=config.hardware.mig) for gpu in gpus_here)
    return frozenset(device for devices in device_lists for device in devices.split(","))


def trainer_gpus(config: Config, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES is for each rank of this node; none without GPUs. Raises DeviceError.

    For those of other nodes it is empty: that is known there (`trainer/ranks/step`).
    """
    placement = place(config)
    home_node, mig = home(placement), config.hardware.mig
    return tuple(visible_devices([gpu], environ, mig=mig) if gpu.node == home_node else "" for gpu in placement.trainer)


def where_ranks_are(config: Config, environ: Mapping[str, str]) -> str:
    """For people. GPUs have the names that engines' have, those of CUDA_VISIBLE_DEVICES. Raises DeviceError."""
    if config.hardware.ray_address is not None:
        return "the Ray cluster"
    gpus = place(config).trainer
    nodes = {gpu.node for gpu in gpus}
    if len(nodes) > 1:
        return f"{len(gpus)} GPUs of {len(nodes)} nodes"
    named = zip(gpus, trainer_gpus(config, environ), strict=True)
    return f"GPU {', '.join(name or str(gpu.index) for gpu, name in named)}" if gpus else "the CPU"


def pad(tokenizer: "PreTrainedTokenizerFast") -> int:
    pad = tokenizer.pad_token_id
    assert isinstance(pad, int)  # load_tokenizer refuses one without
    return pad
