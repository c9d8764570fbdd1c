"""Models and data sets: whether those of the Hugging Face hub are here or to be had, and issues that are too long.

Invariants:
- What is in the cache as a whole needs no network, and none is used.
- No token is sent: only whether one is there matters. No library of the hub is imported.
- An issue is called too long by the tokens of its own text, which the prompt has as well; never by a guess.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swe_rl.check.columns import renamed
from swe_rl.check.findings import Finding, error, warning
from swe_rl.check.preflight.system import HttpQuestion, System, job_environment
from swe_rl.check.rules.agent import own_tokens
from swe_rl.check.rules.data import is_hub_id, rows_in
from swe_rl.check.rules.model import BUILTIN
from swe_rl.config.choices import EngineKind, ExtensionKind
from swe_rl.config.folders import PACKAGE
from swe_rl.config.parts import AGENTS_WITHOUT_MODEL
from swe_rl.config.schema import Config
from swe_rl.extension.find import is_foreign
from swe_rl.host.program import Unanswered
from swe_rl.plan.memory import weights_gb

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ENDPOINT = "https://huggingface.co"
_HIDDEN = (401, 403, 404)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.(safetensors|bin)$")
_YES = {"1", "on", "yes", "true"}
_COUNTED = 256  # issues, of all lengths


@dataclass(frozen=True, slots=True)
class HubItem:
    """Something that the configuration names at `key`; `kind` is models or datasets."""

    key: str
    kind: str
    name: str
    revision: str | None = None


def ask(config: Config, system: System) -> Iterator[Finding]:
    environment = job_environment(config, system)
    folder = cache_folder(environment)
    for item in _items(config, system):
        missing = missing_from_cache(item, folder, system)
        if missing is not None:
            yield from _to_fetch(config, system, environment, item, f"{missing} (looked in {folder})")
    yield from _local_folder(config, system)


def prompts(config: Config, system: System) -> Iterator[Finding]:
    """Of issues in files of this machine: how many are longer than what the agent's words leave of a first prompt."""
    taken, texts = own_tokens(config.agent), list(_issues(config, system))
    limit = config.rollout.max_prompt_tokens - taken
    longest = sorted((text for text in texts if len(text.encode()) > limit > 0), key=len, reverse=True)
    tokenizer = _tokenizer(config, system) if longest and config.agent.name not in AGENTS_WITHOUT_MODEL else None
    if tokenizer is None:
        return
    step = -(-len(longest) // _COUNTED)
    encoded = tokenizer.encode_batch(longest[::step], add_special_tokens=False)
    most, too_long = max(map(len, encoded)), min(step * sum(len(ids) > limit for ids in encoded), len(longest))
    if too_long:
        share = f"{'about ' if step > 1 else ''}{too_long} of {len(texts)} issues ({too_long / len(texts):.1%})"
        beside = f" beside the agent's own {taken}" if taken else ""
        yield warning(
            "preflight_prompts",
            "rollout.max_prompt_tokens",
            f"{share} have more tokens, up to {most}{beside}: their trajectories end as context_overflow without a "
            "turn, as failures that teach nothing",
            f"rollout.max_prompt_tokens={(most + taken) // 512 * 512 + 1024}, or env.instances=FILE without them",
        )


def _issues(config: Config, system: System) -> Iterator[str]:
    env = config.env
    columns = {env.eval_dataset or env.dataset: env.eval_columns} | {env.dataset: env.columns}
    for dataset, names in columns.items() if not is_foreign(config, ExtensionKind.env) else ():
        if dataset.endswith(".jsonl"):
            column = "question" if env.name == "kodcode" else "problem_statement"
            rows = rows_in(system.read_text(dataset) or "")
            yield from (str(renamed(row, names).get(column) or "").strip() for row in rows)
        elif env.name == "harbor":
            splits = [f"{dataset}/{name}" for name in system.list_folder(dataset)]
            tasks = [dataset, *splits, *(f"{split}/{name}" for split in splits for name in system.list_folder(split))]
            yield from (text for task in tasks if (text := system.read_text(f"{task}/instruction.md")) is not None)


def _tokenizer(config: Config, system: System) -> "Tokenizer | None":
    """Of a folder, or of the hub's cache; None where there is none."""
    path = config.model.path
    if is_hub_id(path, system.exists):
        repository = f"{cache_folder(job_environment(config, system))}/models--{path.replace('/', '--')}"
        item, there = HubItem("", "", "", config.model.revision), system.list_folder(f"{repository}/snapshots")
        folder = f"{repository}/snapshots/{_commit(item, repository, there, system)}"
    else:
        folder = str(PACKAGE / "model/checkpoints" / path.removeprefix(BUILTIN)) if path.startswith(BUILTIN) else path
    text = system.read_text(f"{folder}/tokenizer.json")
    if text is None or system.version("tokenizers") is None:
        return None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    return tokenizer


def _items(config: Config, system: System) -> Iterator[HubItem]:
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
        yield _unavailable(config, item, f"{reason}, and it must come from the cache: {missing}")
        return
    token = _has_token(environment, system)
    if item.kind == "models" and config.model.gated and not token:
        yield _needs_token(config, item, "the hub gives it only to users who accepted its terms")
        return
    try:
        status = system.http(HttpQuestion(_url(environment, item), method="HEAD")).status
    except Unanswered as unreachable:
        yield _unavailable(config, item, f"the hub cannot be reached ({unreachable}), and in the cache {missing}")
        return
    if status in _HIDDEN and not token:
        yield _needs_token(config, item, f"the hub does not show it (status {status}): misspelt, private or gated")
    if item.kind == "models":
        yield _download(config, system, environment)


def _no_network(config: Config, environment: Mapping[str, str]) -> str | None:
    if (variable := told_offline(environment)) is not None:
        return f"{variable} is set"
    return None if config.hardware.internet else "hardware.internet=false"


def _url(environment: Mapping[str, str], item: HubItem) -> str:
    revision = f"/revision/{item.revision}" if item.revision else ""
    return f"{environment.get('HF_ENDPOINT', ENDPOINT).rstrip('/')}/api/{item.kind}/{item.name}{revision}"


def _has_token(environment: Mapping[str, str], system: System) -> bool:
    file = environment.get("HF_TOKEN_PATH") or f"{hub_home(environment)}/token"
    return bool(environment.get("HF_TOKEN") or environment.get("HUGGING_FACE_HUB_TOKEN") or system.read_text(file))


def _unavailable(config: Config, item: HubItem, message: str) -> Finding:
    kind = " --repo-type dataset" if item.kind == "datasets" else ""
    revision = f" --revision {item.revision}" if item.revision else ""
    fix = f"hf download {item.name}{kind}{revision} where there is a network (with the same HF_HOME)"
    if item.kind == "models" and config.engine.kind is EngineKind.embedded:
        fix += ", or model=tiny"
    return error("preflight_hub", item.key, message, fix)


def _needs_token(config: Config, item: HubItem, message: str) -> Finding:
    page = f"{ENDPOINT}/{'datasets/' if item.kind == 'datasets' else ''}{item.name}"
    fix = f"check the name at {page}, accept its terms there, and export HF_TOKEN (or: hf auth login)"
    return error("preflight_hub_token", item.key, f"{message}; there is no HF_TOKEN", fix)


def _download(config: Config, system: System, environment: Mapping[str, str]) -> Finding:
    folder, needed_gb = cache_folder(environment), weights_gb(config.model)
    free_gb = system.disk_free_bytes(folder) / 1e9
    if needed_gb > free_gb:
        message = f"its weights take {needed_gb:.0f} GB; {free_gb:.0f} GB are free in the hub's cache {folder}"
        return error("preflight_disk", "model.path", message, "export HF_HOME=FOLDER on a larger disk")
    message = f"is not in the hub's cache {folder}: {needed_gb:.0f} GB are downloaded while the run's GPUs wait"
    return warning("preflight_hub", "model.path", message, f"hf download {config.model.path}")


# The hub's cache on disk: where it is, and whether something is in it as a whole. Its layout (huggingface_hub,
# "Understand caching"): `models--ORG--NAME/snapshots/COMMIT/...`, and `refs/BRANCH` names a commit.
def told_offline(environment: Mapping[str, str]) -> str | None:
    """The variable that forbids the network, or None."""
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
    """Why the item cannot be loaded from the cache, or None if it can."""
    repository = f"{folder}/{item.kind}--{item.name.replace('/', '--')}"
    snapshots = system.list_folder(f"{repository}/snapshots")
    if not snapshots:
        return "it is not there"
    commit = _commit(item, repository, snapshots, system)
    if commit is None:
        return f"revision {item.revision or 'main'} is not there"
    files = system.list_folder(f"{repository}/snapshots/{commit}")
    if not files:
        return "its snapshot is empty"
    return _incomplete(files) if item.kind == "models" else None


def _commit(item: HubItem, repository: str, snapshots: list[str], system: System) -> str | None:
    wanted = item.revision or "main"
    if wanted in snapshots:
        return wanted
    commit = (system.read_text(f"{repository}/refs/{wanted}") or "").strip()
    return commit if commit in snapshots else None


def _incomplete(files: list[str]) -> str | None:
    """A model needs its config and either one file of weights or all shards."""
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
