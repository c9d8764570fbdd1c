"""Probes models and data sets: those of the hub are here or can be fetched, and no issue is too long.

Invariants:
- What is in the cache as a whole needs no network, and none is used.
- No token is sent: only whether one is there matters. No library of the hub is imported.
- An issue is called too long by the tokens of its own text, which the prompt has as well, and never by a guess.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from swe_rl.check.findings import Finding, error, warning
from swe_rl.check.preflight.system import HttpQuestion, System, job_environment
from swe_rl.check.rules.agent import own_tokens
from swe_rl.check.rules.data import SPLIT, is_hub_id, rows_in
from swe_rl.check.rules.model import BUILTIN
from swe_rl.config.choices import EngineKind, ExtensionKind
from swe_rl.config.folders import PACKAGE
from swe_rl.config.parts import AGENTS_WITHOUT_MODEL, Part, started_parts
from swe_rl.config.schema import Config, EnvConfig
from swe_rl.dataset.columns import columns_for, rename_columns
from swe_rl.extension.find import is_foreign
from swe_rl.facts.memory import weights_gb
from swe_rl.facts.sizes import ReadText, listed_ids
from swe_rl.host.program import Unanswered

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ENDPOINT = "https://huggingface.co"
_HIDDEN = (401, 403, 404)  # the hub answers so for what it does not show
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.(safetensors|bin)$")
_YES = {"1", "on", "yes", "true"}
_COUNTED = 256  # at most so many issues are tokenized, of all lengths
_MOST_BYTES = 256_000_000  # a larger file of issues is not read


@dataclass(frozen=True, slots=True)
class _Choice:
    """Says which instances of a split are used: all, those listed, or those that match."""

    ids: tuple[str, ...] | None = None
    pattern: str = "*"

    def has(self, instance_id: str) -> bool:
        if self.ids is not None:
            return instance_id in self.ids
        return fnmatchcase(instance_id, self.pattern)


@dataclass(frozen=True, slots=True)
class HubItem:
    """Holds something that the configuration names at `key`. `kind` is models or datasets."""

    key: str
    kind: str
    name: str
    revision: str | None = None


def probe_hub(config: Config, system: System) -> Iterator[Finding]:
    environment = job_environment(config, system)
    folder = cache_folder(environment)
    for item in _hub_items(config, system):
        missing = missing_from_cache(item, folder, system)
        if missing is not None:
            yield from _to_fetch(config, system, environment, item, f"{missing} (looked in {folder})")
    yield from _local_folder(config, system)


def probe_prompt_lengths(config: Config, system: System) -> Iterator[Finding]:
    """Warns of issues of this job that are longer than what the agent's words leave of a first prompt.

    The probe reads Harbor tasks and plain rows of a `.jsonl` file of this machine, up to 256 MB. It leaves out nested
    rows, and R2E-Gym's, whose statements are more than what an agent gets.
    """
    taken = own_tokens(config.agent)
    room = config.model.max_position_embeddings - config.rollout.max_turn_tokens
    limit = config.rollout.max_prompt_tokens - taken
    if limit <= 0 or Part.rollouts not in started_parts(config) or config.agent.name in AGENTS_WITHOUT_MODEL:
        return
    if (tokenizer := _load_tokenizer(config, system)) is None:
        return
    texts = [
        text.encode(errors="replace").decode() for text in _read_issues(config, system)
    ]  # JSON may have half a pair
    longest = sorted((text for text in texts if len(text.encode()) > limit), key=len, reverse=True)
    step = max(1, -(-len(longest) // _COUNTED))
    lengths = [len(ids) for ids in tokenizer.encode_batch(longest[::step], add_special_tokens=False)]
    if too_long := min(step * sum(length > limit for length in lengths), len(longest)):
        most = max(lengths)
        share = f"{'about ' if step > 1 else ''}{too_long} of {len(texts)} issues ({too_long / len(texts):.1%})"
        beside = ""
        if taken:
            beside = f" beside the agent's own {taken}"
        raised = f"rollout.max_prompt_tokens={min((most + taken) // 512 * 512 + 1024, room)}, or "
        yield warning(
            "preflight_prompts",
            "rollout.max_prompt_tokens",
            f"{share} have more tokens, up to {most}{beside}: their trajectories end as context_overflow without a "
            "turn, as failures that teach nothing",
            f"{raised if most + taken <= room else ''}env.instances=FILE without them",
        )


def _read_issues(config: Config, system: System) -> Collection[str]:
    """Returns the issues of the splits that this job reads, each once, as far as `env.instances` leaves them."""
    env = config.env
    parts = started_parts(config)
    choice = _choice_of(config.env, system.read_text)
    splits: dict[tuple[str, str], Mapping[str, str]] = {}
    if Part.steps in parts:
        splits[env.dataset, env.split] = env.columns
    if Part.evaluation in parts:
        dataset = env.eval_dataset or env.dataset
        splits.setdefault((dataset, env.eval_split), columns_for(env, evaluated=dataset != env.dataset))
    used: dict[tuple[str, str], str] = {}
    for (dataset, split), columns in splits.items() if not is_foreign(config, ExtensionKind.env) else ():
        if (match := SPLIT.fullmatch(split)) is None:
            continue  # it is refused when it is read
        name, start, stop = match.groups()
        if env.name == "harbor":
            texts = _read_tasks(dataset, name, system)
        else:
            texts = _read_rows(dataset, name, columns, system)
        there = {(dataset, key): text for key, text in texts[int(start or 0) : int(stop) if stop else None] if text}
        chosen = {(dataset, key): text for (_, key), text in there.items() if choice.has(key)}
        used |= chosen or (there if split != env.split else {})  # `narrowed` does so too
    return used.values()


def _choice_of(env: EnvConfig, read_text: ReadText) -> _Choice:
    """Returns the instances that `env.instance_ids` and `env.instances` choose.

    They give ids, a file of ids with `#` for comments, or a pattern.
    """
    return _Choice(listed_ids(env, read_text), env.instances or "*")


def _read_rows(dataset: str, split: str, columns: Mapping[str, str], system: System) -> list[tuple[str, str]]:
    """Returns ids and issues. What is no plain row is there without an issue, because a slice counts it."""
    if not dataset.endswith(".jsonl") or system.file_bytes(dataset) > _MOST_BYTES:
        return []
    rows: list[tuple[object, str, str]] = []
    for row in rows_in(system.read_text(dataset) or ""):
        named = rename_columns(row, columns)
        issue = named.get("problem_statement")
        plain = "instance_id" in named and "expected_output_json" not in named
        text = ""
        if plain and isinstance(issue, str):
            text = issue.strip()
        rows.append((named.get("split"), str(named.get("instance_id")), text))
    tells = any(name for name, _, _ in rows)
    return [(instance_id, text) for name, instance_id, text in rows if not tells or name == split]


def _read_tasks(dataset: str, split: str, system: System) -> list[tuple[str, str]]:
    """Returns the ids and issues of Harbor's tasks, found as `task_folders` finds them."""
    if split == "train" and not system.list_folder(f"{dataset}/train"):
        below = dataset
    else:
        below = f"{dataset}/{split}"
    tasks = [f"{below}/{name}" for name in system.list_folder(below)]
    if split == "train" and system.exists(f"{dataset}/task.toml"):
        tasks = [dataset.rstrip("/")]
    tasks = [task for task in tasks if system.exists(f"{task}/task.toml")]
    return [(task.rpartition("/")[2], (system.read_text(f"{task}/instruction.md") or "").strip()) for task in tasks]


def _load_tokenizer(config: Config, system: System) -> "Tokenizer | None":
    """Returns the tokenizer of a folder, or of the hub's cache, or None where there is none."""
    path = config.model.path
    if is_hub_id(path, system.exists):
        repository = f"{cache_folder(job_environment(config, system))}/models--{path.replace('/', '--')}"
        commit = _cached_commit(config.model.revision, repository, system)  # None says that there is no such folder
        folder = f"{repository}/snapshots/{commit}"
    else:
        if path.startswith(BUILTIN):
            folder = str(PACKAGE / "model/checkpoints" / path.removeprefix(BUILTIN))
        else:
            folder = path
    text = system.read_text(f"{folder}/tokenizer.json")
    if text is None or system.version("tokenizers") is None:
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    return tokenizer


def _hub_items(config: Config, system: System) -> Iterator[HubItem]:
    model = config.model
    if is_hub_id(model.path, system.exists):
        yield HubItem("model.path", "models", model.path, model.revision)
    for key, name in (("env.dataset", config.env.dataset), ("env.eval_dataset", config.env.eval_dataset)):
        if name is not None and is_hub_id(name, system.exists):
            yield HubItem(key, "datasets", name)


def _local_folder(config: Config, system: System) -> Iterator[Finding]:
    path = config.model.path
    if path.startswith(("/", "./", "../", "~")) and not system.exists(path):
        yield error(
            "preflight_hub",
            "model.path",
            "there is no such folder on this machine",
            "model.path=FOLDER with config.json and model.safetensors, or an id of the Hugging Face hub",
        )


def _to_fetch(
    config: Config, system: System, environment: Mapping[str, str], item: HubItem, missing: str
) -> Iterator[Finding]:
    if (reason := _no_network(config, environment)) is not None:
        yield _unavailable_finding(config, item, f"{reason}, and it must come from the cache: {missing}")
        return
    token = _has_token(environment, system)
    if item.kind == "models" and config.model.gated and not token:
        yield _needs_token(config, item, "the hub gives it only to users who accepted its terms")
        return
    try:
        status = system.http(HttpQuestion(_item_url(environment, item), method="HEAD")).status
    except Unanswered as unreachable:
        yield _unavailable_finding(
            config, item, f"the hub cannot be reached ({unreachable}), and in the cache {missing}"
        )
        return
    if status in _HIDDEN and not token:
        yield _needs_token(config, item, f"the hub does not show it (status {status}): misspelt, private or gated")
    if item.kind == "models":
        yield _download_finding(config, system, environment)


def _no_network(config: Config, environment: Mapping[str, str]) -> str | None:
    if (variable := told_offline(environment)) is not None:
        return f"{variable} is set"
    if config.hardware.internet:
        return None
    return "hardware.internet=false"


def _item_url(environment: Mapping[str, str], item: HubItem) -> str:
    revision = ""
    if item.revision:
        revision = f"/revision/{item.revision}"
    return f"{environment.get('HF_ENDPOINT', ENDPOINT).rstrip('/')}/api/{item.kind}/{item.name}{revision}"


def _has_token(environment: Mapping[str, str], system: System) -> bool:
    file = environment.get("HF_TOKEN_PATH") or f"{hub_home(environment)}/token"
    return bool(environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN") or system.read_text(file))


def _unavailable_finding(config: Config, item: HubItem, message: str) -> Finding:
    kind = ""
    if item.kind == "datasets":
        kind = " --repo-type dataset"
    revision = ""
    if item.revision:
        revision = f" --revision {item.revision}"
    fix = f"hf download {item.name}{kind}{revision} where there is a network (with the same HF_HOME)"
    if item.kind == "models" and config.engine.kind is EngineKind.embedded:
        fix += ", or model=tiny"
    return error("preflight_hub", item.key, message, fix)


def _needs_token(config: Config, item: HubItem, message: str) -> Finding:
    page = f"{ENDPOINT}/{'datasets/' if item.kind == 'datasets' else ''}{item.name}"
    fix = f"check the name at {page}, accept its terms there, and export HF_TOKEN (or: hf auth login)"
    return error("preflight_hub_token", item.key, f"{message}; there is no HF_TOKEN", fix)


def _download_finding(config: Config, system: System, environment: Mapping[str, str]) -> Finding:
    folder = cache_folder(environment)
    needed_gb = weights_gb(config.model)
    free_gb = system.disk_free_bytes(folder) / 1e9
    if needed_gb > free_gb:
        message = f"its weights take {needed_gb:.0f} GB; {free_gb:.0f} GB are free in the hub's cache {folder}"
        return error("preflight_disk", "model.path", message, "export HF_HOME=FOLDER on a larger disk")
    message = f"is not in the hub's cache {folder}: {needed_gb:.0f} GB are downloaded while the run's GPUs wait"
    return warning("preflight_hub", "model.path", message, f"hf download {config.model.path}")


# The rest finds the hub's cache on disk, and tells whether something is in it as a whole. Its layout (huggingface_hub,
# "Understand caching") is `models--ORG--NAME/snapshots/COMMIT/...`, and `refs/BRANCH` names a commit.
def told_offline(environment: Mapping[str, str]) -> str | None:
    """Returns the variable that forbids the network, or None."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    return next((name for name in names if environment.get(name, "").lower() in _YES), None)


def cache_folder(environment: Mapping[str, str]) -> str:
    if given := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return given
    return f"{hub_home(environment)}/hub"


def hub_home(environment: Mapping[str, str]) -> str:
    if given := environment.get("HF_HOME"):
        return given
    caches = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '~')}/.cache"
    return f"{caches}/huggingface"


def missing_from_cache(item: HubItem, folder: str, system: System) -> str | None:
    """Returns why the item cannot be loaded from the cache, or None if it can."""
    repository = f"{folder}/{item.kind}--{item.name.replace('/', '--')}"
    if not system.list_folder(f"{repository}/snapshots"):
        return "it is not there"
    commit = _cached_commit(item.revision, repository, system)
    if commit is None:
        return f"revision {item.revision or 'main'} is not there"
    files = system.list_folder(f"{repository}/snapshots/{commit}")
    if not files:
        return "its snapshot is empty"
    if item.kind == "models":
        return _missing_files(files)
    return None


def _cached_commit(revision: str | None, repository: str, system: System) -> str | None:
    wanted = revision or "main"
    snapshots = system.list_folder(f"{repository}/snapshots")
    if wanted in snapshots:
        return wanted
    commit = (system.read_text(f"{repository}/refs/{wanted}") or "").strip()
    if commit in snapshots:
        return commit
    return None


def _missing_files(files: Sequence[str]) -> str | None:
    """Returns what a model lacks, or None: it needs its config and either one file of weights or all shards."""
    if "config.json" not in files:
        return "it has no config.json"
    shards = [match for file in files if (match := _SHARD.search(file))]
    for _, total, ending in {match.groups() for match in shards}:
        have = {match[1] for match in shards if match[2] == total and match[3] == ending}
        if len(have) < int(total):
            return f"only {len(have)} of its {int(total)} files of weights are there"
    if not shards and not any(file.endswith((".safetensors", ".bin")) for file in files):
        return "it has no weights"
    return None
