"""A job starts parts of swe_rl. A rule belongs to the parts that it is about, never to a job's name.

Invariants:
- `check` and `plan` start nothing: they answer for the job that job.of names.
- A job is refused for nothing that it does not start.
"""

from dataclasses import replace
from enum import StrEnum

from swe_rl.config.choices import EngineKind, JobName
from swe_rl.config.schema import Config

AGENTS_WITHOUT_MODEL = frozenset({"gold", "demonstrate", "noop", "scripted", "predictions"})


class Part(StrEnum):
    trainer = "trainer"
    warm_start = "warm_start"  # This is job=sft's trainer.
    engines = "engines"
    router = "router"  # The gateway belongs to it.
    rollouts = "rollouts"  # Agents are at work.
    steps = "steps"  # Rollouts are on the split that is trained on.
    evaluation = "evaluation"  # Rollouts are on the split that is held out.
    sandboxes = "sandboxes"
    data = "data"
    writer = "writer"  # An endpoint writes the issues that rows lack.
    mining = "mining"  # Instances are made, not read.
    grading = "grading"
    runtime = "runtime"  # This is a sandbox server.
    outputs = "outputs"  # The job writes a folder of its run.
    logger = "logger"  # It writes figures beside the run's folder.


_SAMPLED = frozenset({Part.engines, Part.router})
_ROLLOUTS = _SAMPLED | {
    Part.rollouts, Part.sandboxes, Part.data, Part.grading, Part.runtime, Part.outputs, Part.logger,
}  # fmt: skip
_OF_JOB: dict[JobName, frozenset[Part]] = {
    JobName.train: _ROLLOUTS | {Part.trainer, Part.steps, Part.evaluation},
    JobName.rft: _ROLLOUTS | {Part.trainer, Part.steps, Part.evaluation},
    JobName.rollout: _ROLLOUTS | {Part.steps},
    JobName.eval: _ROLLOUTS | {Part.evaluation},
    JobName.sft: frozenset({Part.warm_start, Part.data, Part.outputs, Part.logger}),
    JobName.serve: _SAMPLED | {Part.outputs},
    JobName.runtime: frozenset({Part.runtime, Part.sandboxes, Part.outputs}),
    JobName.mine: frozenset({Part.mining, Part.sandboxes}),
    JobName.prepare: frozenset({Part.data}),
    JobName.validate: frozenset({Part.data, Part.sandboxes, Part.grading}),
    JobName.images: frozenset({Part.data}),
    JobName.simulate: _SAMPLED,  # They run in virtual time.
}
ASKING = frozenset({JobName.check, JobName.plan})

# These keys of the trainer say how it learns from rollouts. job=sft has its own, or no use for them.
_NOT_SUPERVISED = (
    "trainer.steps",
    "trainer.lr",
    "trainer.warmup_steps",
    "trainer.prompts_per_mini_batch",
    "trainer.lr_schedule",
    "trainer.lr_final_fraction",
    "trainer.checkpoint_every_steps",
    "trainer.eval_every_steps",
    "trainer.eval_from_step",
    "trainer.max_staleness_steps",
    "trainer.lora_serving",
    "trainer.weight_sync",
    "trainer.check_weights",
    "trainer.routing_replay",
)
TRAINS = frozenset({Part.trainer, Part.warm_start})

# Says which parts read the keys of a group, or one key. A group that is not here is read by every job.
_READERS: dict[str, frozenset[Part]] = {
    "trainer": frozenset({Part.trainer, Part.warm_start}),
    **dict.fromkeys(_NOT_SUPERVISED, frozenset({Part.trainer})),
    "trainer.seed": frozenset({Part.trainer, Part.engines, Part.steps, Part.evaluation}),
    "algo": frozenset({Part.trainer}),
    "advantage": frozenset({Part.trainer}),
    "loss": frozenset({Part.trainer}),
    "reward": frozenset({Part.rollouts}),
    "sft": frozenset({Part.warm_start}),
    "mine": frozenset({Part.mining}),
    "engine": frozenset({Part.engines, Part.writer}),
    "router": frozenset({Part.router}),
    "gateway": frozenset({Part.router}),
    "layout": frozenset({Part.engines, Part.trainer, Part.warm_start}),
    "rollout": frozenset({Part.rollouts}),
    "agent": frozenset({Part.rollouts}),
    "sandbox": frozenset({Part.sandboxes}),
    "runtime": frozenset({Part.runtime}),
    "env": frozenset({Part.data, Part.mining}),
    "grader": frozenset({Part.data, Part.mining}),
    "logger": frozenset({Part.logger}),
}


def asked_config(config: Config) -> Config:
    """Returns the configuration of the job that `check` or `plan` answers for; that of any other job is returned
    itself."""
    if config.job.name not in ASKING:
        return config
    return replace(config, job=replace(config.job, name=config.job.of))


def started_parts(config: Config) -> frozenset[Part]:
    """Returns the parts of this job. It has no engine, and so no router, if nobody asks a model."""
    parts = _OF_JOB.get(asked_config(config).job.name, frozenset())
    if writes_issues(config):
        return parts | {Part.writer}
    if Part.rollouts in parts and config.agent.name in AGENTS_WITHOUT_MODEL and Part.trainer not in parts:
        return parts - _SAMPLED
    return parts


def writes_issues(config: Config) -> bool:
    """Tells whether this job has an endpoint write the issues that rows lack."""
    prepares = asked_config(config).job.name is JobName.prepare
    return prepares and config.env.issues is not None and config.engine.kind is EngineKind.endpoint


def starts_trainer(config: Config) -> bool:
    """Tells whether this job starts a trainer, from rollouts or from demonstrations."""
    return bool(TRAINS & started_parts(config))


def reads_key(config: Config, key: str) -> bool:
    """Tells whether this job reads a key."""
    readers = _READERS.get(key) or _READERS.get(key.partition(".")[0])
    return readers is None or bool(readers & started_parts(config))
