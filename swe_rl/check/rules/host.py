"""Rules of a run's surroundings check files, names, accounts and environment variables.

Invariants:
- What is asked of this machine goes through the injected Host.
- A variable of another system's script says something only beside what that system ran; the command line wins over it,
  and what loses is named.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import PurePath
from typing import Any

from swe_rl.check.findings import Finding, Host, error, rule_about, warning
from swe_rl.check.rules.model import is_exported
from swe_rl.config.choices import EngineKind, JobName, Objective, WandbMode
from swe_rl.config.composition.values import config_hash
from swe_rl.config.dataset_files import ENDINGS, SAVED, files_of, whole_files
from swe_rl.config.parts import Part, asked_config, reads_key, started_parts
from swe_rl.config.schema import Config, JobConfig
from swe_rl.config.secrets import is_secret_key, mask_text, spelled_secrets
from swe_rl.config.yaml_text import YamlError, parse_yaml
from swe_rl.host.addresses import base_address, is_loopback

# The hub takes names of 96 characters. The data set's name has `-trajectories` in addition.
_LONGEST_REPOSITORY = 82
_REPOSITORY = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?<![.-])(?<!\.git)", re.ASCII)
_OF_STEPS = frozenset(
    {Objective.steps, Objective.tokens_per_s, Objective.sampled_tokens_per_s, Objective.num_trajectories}
)
_OF_EVERY_JOB = frozenset({Objective.wall_s, Objective.peak_memory_gb})
_MEASURED = {
    JobName.train: frozenset(Objective),
    JobName.rft: frozenset(Objective),
    JobName.rollout: _OF_STEPS | _OF_EVERY_JOB,
    JobName.eval: frozenset({Objective.resolved_rate_before, Objective.resolved_samples_before}) | _OF_EVERY_JOB,
    JobName.sft: frozenset({Objective.steps, Objective.trainer_restarts}) | _OF_EVERY_JOB,
}  # these jobs write a summary.json, in which the other figures are null


@rule_about(Part.data)
def files_exist(config: Config, host: Host) -> Iterator[Finding]:
    files = {"env.instances": config.env.instances}
    if config.env.instances and "*" in config.env.instances:  # it is a pattern
        files = {}
    for key, dataset in (("env.dataset", config.env.dataset), ("env.eval_dataset", config.env.eval_dataset)):
        if dataset and dataset.endswith(ENDINGS):
            files[key] = dataset
    yield from _check_dataset_folders(config, host)
    if config.env.proofs and host.exists(config.env.proofs) and not host.file_exists(config.env.proofs):
        yield error("file", "env.proofs", "is a folder", f"env.proofs={config.env.proofs.rstrip('/')}/proofs.jsonl")
    for key, path in files.items():
        if path is not None and not host.file_exists(path):
            yield error(
                "file", key, "there is no such file (relative paths start where you start)", f"{key}=PATH of the file"
            )


def _check_dataset_folders(config: Config, host: Host) -> Iterator[Finding]:
    """Finds data sets whose folder is not on this machine, or has no files of the split."""
    env = config.env
    evaluated = "env.eval_dataset"
    if env.eval_dataset is None:
        evaluated = "env.dataset"
    wanted = {
        Part.steps: ("env.dataset", env.dataset, env.split),
        Part.evaluation: (evaluated, env.eval_dataset or env.dataset, env.eval_split),
    }
    read = [part for part in wanted if part in started_parts(config)] or list(wanted)  # job=prepare reads all
    for key, path, split in (wanted[part] for part in read):
        if path.endswith((*ENDINGS, ".jsonl.gz")) or not (
            path.startswith(("/", "./", "../", "~")) or host.exists(path)
        ):
            continue
        name = split.partition("[")[0]
        below = (host.listing(path), host.listing(f"{path.rstrip('/')}/data"))
        fix = f"{key}=FILE.parquet, or a folder with {name}.parquet or {name}.jsonl"
        if env.name == "harbor":  # its tasks are read before anything is started
            fix = f"{key}=FOLDER, which holds task folders"
            if host.exists(path):
                continue
        if not host.exists(path):
            yield error("file", key, "there is no such folder (relative paths start where you start)", fix)
        elif not any(files_of(names, name) or whole_files(names) or set(names) & set(SAVED) for names in below):
            yield error("file", key, f"the folder has no file of the split {name}", fix)


@rule_about()
def asked_job_has_its_input(config: Config, host: Host) -> Iterator[Finding]:
    """Finds a job without its input. The job itself says the same when it starts."""
    job = config.job
    if job.name is JobName.export and not (job.checkpoint or job.runs):
        yield error("job_input", "job.checkpoint", "job=export reads one", "job.checkpoint=RUN, or job.runs=RUN")
    if job.name is JobName.export and job.push:
        yield from _check_push(job, host)
    if job.name is JobName.view and job.runs and not host.exists(job.runs):
        yield error("job_input", "job.runs", "there is no such folder", "job.runs=FOLDER of a run, or of runs")


def _check_push(job: JobConfig, host: Host) -> Iterator[Finding]:
    if not _REPOSITORY.fullmatch(job.push or "") or len(job.push or "") > _LONGEST_REPOSITORY:
        message = f"is no name that the hub takes, with at most {_LONGEST_REPOSITORY} characters"
        yield error("push", "job.push", message, "job.push=ORG/NAME of letters, digits, '.', '_' and '-'")
    if job.output:
        message = "job.push writes into exports/ of the run"
        yield error("push", "job.output", message, "leave job.output out, or export without job.push")
    if not job.dry_run and not host.environment.get("HF_TOKEN"):
        message = "the hub wants a token that may write, and HF_TOKEN is not set"
        yield error("push", "job.push", message, "export HF_TOKEN, or job.dry_run=true to see what would be pushed")


@rule_about()
def run_name(config: Config, _: Host) -> Iterator[Finding]:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", config.name):
        yield error("name", "name", "names a folder: letters, digits, '.', '_' and '-', no '/'", "name=my_run")


@rule_about(Part.outputs)
def objective_measured(config: Config, _: Host) -> Iterator[Finding]:
    job = config.job.name
    wanted = config.job.objective
    measured = _MEASURED.get(job, frozenset())
    if wanted is None or wanted in measured:
        return
    names = ", ".join(figure for figure in Objective if figure in measured)
    message = f"job={job} writes no summary.json"
    fix = "leave job.objective out, or job=train, rft, rollout, eval or sft"
    if measured:
        message = f"is null in the summary.json of job={job}"
        fix = f"job.objective one of {names}"
    yield error("objective", "job.objective", message, fix)


@rule_about(Part.outputs)
def outputs_writable(config: Config, host: Host) -> Iterator[Finding]:
    for key, folder in (("paths.outputs", config.paths.outputs), ("paths.sync_to", config.paths.sync_to)):
        if folder is not None and not host.folder_writable(folder):
            yield error(
                "outputs", key, "cannot be made or written to by this user", f"{key}=FOLDER that you may write to"
            )


@rule_about(Part.warm_start)
def warm_start_output(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses a folder that cannot become the new model's. Only a model makes way for a model."""
    output = config.sft.output
    names = host.listing(output)
    holds_model = any(fnmatch(name, "model*.safetensors") for name in names)
    if not PurePath(output).name:
        message = "names no folder that a model could have for itself"
    elif host.file_exists(output) or (names and not holds_model):
        message = "is there and holds no model, so it is not replaced"
    elif not host.folder_writable(output):
        message = "cannot be made or written to by this user"
    else:
        return
    yield error("sft_output", "sft.output", message, "sft.output=FOLDER, a new one")


@rule_about(Part.steps, Part.evaluation, Part.warm_start)
def check_resume(config: Config, host: Host) -> Iterator[Finding]:
    value = config.trainer.resume
    if value not in ("auto", "none") and not host.file_exists(f"{value.rstrip('/')}/status.json"):
        yield error(
            "resume",
            "trainer.resume",
            "is neither auto nor none, nor the folder of a run (no status.json there)",
            "trainer.resume=auto, or the path of a run's folder",
        )


@rule_about(Part.logger)
def check_wandb(config: Config, host: Host) -> Iterator[Finding]:
    known = "WANDB_API_KEY" in host.environment or "WANDB_API_KEY" in config.hardware.env_vars
    if config.logger.wandb == WandbMode.online and not known and not host.file_exists("~/.netrc"):
        yield error(
            "wandb", "logger.wandb", "WANDB_API_KEY is not set", "logger.wandb=offline, or export WANDB_API_KEY"
        )
    if config.logger.wandb == WandbMode.online and not config.hardware.internet:
        yield error(
            "wandb_offline",
            "logger.wandb",
            f"the nodes of hardware={config.hardware.name} do not reach the internet",
            "logger.wandb=offline, and `wandb sync` afterwards",
        )


@rule_about(Part.logger)
def check_otel(config: Config, _: Host) -> Iterator[Finding]:
    target = config.logger.otel
    if target is None or target == "file":
        return
    try:
        base_address(target)
    except ValueError as problem:
        fix = "logger.otel=file, or http://HOST:4318 with a key in OTEL_EXPORTER_OTLP_HEADERS of the environment"
        yield error("otel", "logger.otel", str(problem), fix, value=mask_text(target))


@rule_about(Part.engines, Part.trainer, Part.warm_start)
def gated_model(config: Config, host: Host) -> Iterator[Finding]:
    tokens = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    known = any(host.environment.get(name) or name in config.hardware.env_vars for name in tokens)
    if config.model.gated and not known and not host.file_exists("~/.cache/huggingface/token"):
        yield error(
            "gated_model",
            "model.path",
            "its owner gives it to known accounts only, and HF_TOKEN is not set",
            "export HF_TOKEN, or model.path=FOLDER with the files",
        )


@rule_about(Part.steps, Part.evaluation, Part.warm_start)
def resumed_run_is_this_one(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses to resume a run of another job or configuration.

    Keys are compared by name, then all that count.
    """
    folder = config.trainer.resume.rstrip("/")
    if folder in ("auto", "none"):
        return
    differs = list(_find_differing(config, folder, _parse_table(host.read_text(f"{folder}/config.yaml"))))
    yield from differs
    status = _parse_table(host.read_text(f"{folder}/status.json"))
    mine = asked_config(config).job.name
    job = status.get("job") or mine
    digest = status.get("config_hash")
    exported = is_exported(config.model.path, host)  # the run's own hash names the model that was exported then
    if job != mine:
        message = f"{folder} is a run of job={job}, and this is job={mine}"
        fix = f"job={job}"
    elif digest and digest != config_hash(config) and not differs and not exported:
        message = f"{folder} was run with another configuration (see its config.yaml)"
        fix = "the overrides of that run"
    else:
        return
    yield error("resume_differs", "trainer.resume", message, f"{fix}, {_ANEW}")


def _parse_table(text: str | None) -> dict[str, Any]:
    """Returns the table in a text of YAML or JSON, or an empty one where there is nothing that can be read."""
    values = None
    with suppress(YamlError):
        values = parse_yaml(text or "")
    if not isinstance(values, dict):
        return {}
    return values


def _find_differing(config: Config, folder: str, saved: Mapping[str, Any]) -> Iterator[Finding]:
    for key in _KEPT:
        group, name = key.split(".")
        value = getattr(getattr(config, group), name)
        before = saved.get(group, {}).get(name, value)
        if before != value and str(before) != str(value):
            yield error("resume_differs", key, f"{folder} was run with {key}={before}", f"{key}={before}, {_ANEW}")


_ANEW = "or trainer.resume=none for a run of its own"
_KEPT = (
    "model.path",
    "model.hidden_size",
    "model.num_layers",
    "model.vocab_size",
    "rollout.n",
    "rollout.prompts_per_step",
    "env.dataset",
    "env.split",
    "algo.advantage",
    "trainer.lora_rank",
    "trainer.lora_alpha",
    "trainer.seed",
)


@rule_about(Part.router)
def check_loopback(config: Config, _: Host) -> Iterator[Finding]:
    if not is_loopback(config.gateway.host):
        yield warning(
            "loopback",
            "gateway.host",
            "other machines reach this address, without encryption: only the run's own key keeps them from the engines",
            "gateway.host=127.0.0.1, unless sandboxes are on other machines and the network is yours",
        )


@rule_about()
def own_variables(config: Config, _: Host) -> Iterator[Finding]:
    for name in sorted(_SET_PER_PROCESS & config.hardware.env_vars.keys()):
        yield error(
            "env_vars",
            f"hardware.env_vars.{name}",
            "is set for each process by the layout; one value for all of them would undo it",
            f"leave {name} out",
        )


_SET_PER_PROCESS = frozenset({
    "CUDA_VISIBLE_DEVICES", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH",
})  # fmt: skip


@rule_about()
def secrets_in_files(config: Config, host: Host) -> Iterator[Finding]:
    hidden = {value for name, value in host.environment.items() if is_secret_key(f"env_vars.{name}")}
    for name, value in config.hardware.env_vars.items():
        key = f"hardware.env_vars.{name}"
        if is_secret_key(key) and value not in hidden:
            yield warning(
                "secret_in_file",
                key,
                "a secret is written in a file of conf/",
                f"{key}: ${{oc.env:{name}}} in that file, and export {name}",
                value="***",
            )


@rule_about()
def secrets_in_setup(config: Config, _: Host) -> Iterator[Finding]:
    """Refuses secrets in lines of a batch script, which is a file."""
    for key, lines in (("hardware.setup", config.hardware.setup), ("runtime.setup", config.runtime.setup)):
        for name in dict.fromkeys(name for line in lines for name in spelled_secrets(line)):
            yield error(
                "secret_in_setup",
                key,
                "a secret is spelled out in a line of the batch script and of config.yaml, which others may read",
                f"export {name} where you submit, or {name}=$(cat ~/FILE) in that line",
                value=name,
            )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Holds the key that a variable stands for, and its value here.

    With `decides` the variable sets the key where nothing else does.
    """

    key: str
    value: Callable[[Config], object]
    decides: bool = True


# The scripts of slime's GRPO on SWE-bench and of SWE-PDB read these names.
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


@rule_about(Part.rollouts)
def variables_read(config: Config, host: Host) -> Iterator[Finding]:
    readers = {"django201": _DJANGO, "kodcode": _DEBUGGING}.get(config.env.name, {})
    for variable, reader in readers.items():
        given = host.environment.get(variable)
        value = reader.value(config)
        if not given or not reads_key(config, reader.key) or str(value) == given:
            continue
        shown = mask_text(given)
        yield warning(
            "variable",
            reader.key,
            (
                f"{variable}={shown} is set in the environment, and "
                + (
                    "something else was chosen"
                    if reader.decides
                    else "nothing reads it: rollouts are in the run's folder"
                )
            ),
            f"{reader.key}={shown}, or unset {variable}",
            value=value,
        )


@rule_about(Part.engines)
def servers_elsewhere(config: Config, host: Host) -> Iterator[Finding]:
    if config.engine.kind == EngineKind.vllm and not config.engine.urls and host.environment.get("VLLM_URL"):
        yield warning(
            "variable",
            "engine.kind",
            "VLLM_URL is set in the environment, and nothing reads it: the run starts servers of its own",
            "engine=external, or unset VLLM_URL",
        )
