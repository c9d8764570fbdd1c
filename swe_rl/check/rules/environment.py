"""Rules of environment variables that other systems' scripts set: honoured, or named.

Invariants:
- A variable says something only beside what its system ran: MODEL in the shell of another run is no finding.
- The command line wins over the environment; what loses is named.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from swe_rl.check.findings import Finding, Host, about, warning
from swe_rl.config.choices import EngineKind
from swe_rl.config.parts import Part, reads
from swe_rl.config.schema import Config
from swe_rl.config.secrets import mask_text


@dataclass(frozen=True, slots=True)
class _Reader:
    """The key that a variable stands for, and its value here. `decides`: where the key is not set otherwise."""

    key: str
    value: Callable[[Config], object]
    decides: bool = True


# The names are those of slime's GRPO on SWE-bench and of SWE-PDB.
_DJANGO: Mapping[str, _Reader] = {
    "MODEL": _Reader("model.path", lambda config: config.model.path),
    "NUM_ROLLOUTS": _Reader("trainer.steps", lambda config: config.trainer.steps),
    "ROLLOUT_BATCH_SIZE": _Reader("rollout.prompts_per_step", lambda config: config.rollout.prompts_per_step),
    "N_SAMPLES": _Reader("rollout.n", lambda config: config.rollout.n),
    "OUTPUT_DIR": _Reader("paths.outputs", lambda config: config.paths.outputs),
}
_DEBUGGING: Mapping[str, _Reader] = {
    "SWE_PDB_MODEL_PATH": _Reader("model.path", lambda config: config.model.path),
    "SWE_PDB_CHECKPOINT_BASE": _Reader(
        "paths.outputs", lambda config: config.paths.outputs.removesuffix(f"/{config.logger.project}")
    ),
    "KODCODE_DATA_PATH": _Reader("env.dataset", lambda config: config.env.dataset),
    "N_PARALLEL": _Reader("rollout.n", lambda config: config.rollout.n),
    "MAX_STEPS": _Reader("rollout.max_turns", lambda config: config.rollout.max_turns),
    "ROLLOUT_DATA_DIR": _Reader("paths.outputs", lambda config: config.paths.outputs, decides=False),
}


@about(Part.rollouts)
def variables_read(config: Config, host: Host) -> Iterator[Finding]:
    names = _DJANGO if config.env.name == "django201" else _DEBUGGING if config.env.name == "kodcode" else {}
    for variable, reader in names.items():
        told = host.environment.get(variable)
        value = reader.value(config)
        if not told or not reads(config, reader.key) or str(value) == told:
            continue
        shown = mask_text(told)
        yield warning(
            "variable",
            reader.key,
            value,
            f"{variable}={shown} is set in the environment, and "
            + ("something else was chosen" if reader.decides else "nothing reads it: rollouts are in the run's folder"),
            f"{reader.key}={shown}, or unset {variable}",
        )


@about(Part.engines)
def servers_elsewhere(config: Config, host: Host) -> Iterator[Finding]:
    if config.engine.kind == EngineKind.vllm and not config.engine.urls and host.environment.get("VLLM_URL"):
        yield warning(
            "variable",
            "engine.kind",
            config.engine.kind,
            "VLLM_URL is set in the environment, and nothing reads it: the run starts servers of its own",
            "engine=external, or unset VLLM_URL",
        )


RULES = (variables_read, servers_elsewhere)
