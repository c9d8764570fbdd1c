"""Rules of the instances check that there are enough, that evaluation has its own, and that images and grading fit.

Invariants:
- Names, splits and slices alone decide. What only the rows can tell is refused when they are read.
"""

import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from string import Formatter
from typing import Any

from swe_rl.check.findings import Finding, Host, error, error_if, rule_about, rule_between, warning
from swe_rl.check.rules.agent import AGENT_TOOLS, VERIFIERS
from swe_rl.config.choices import OWN_ROWS, ExtensionKind, GradingKind, Keep, SandboxKind, Unproven
from swe_rl.config.dataset_files import no_such_instances
from swe_rl.config.folders import PACKAGE
from swe_rl.config.keys import nearest_words
from swe_rl.config.parts import Part, reads_key, started_parts
from swe_rl.config.schema import Config, EnvConfig
from swe_rl.dataset.columns import TREE_COLUMNS, absent_columns, rename_columns, unknown_names
from swe_rl.extension.code import search_folders
from swe_rl.extension.find import foreign_names, is_foreign
from swe_rl.extension.kinds import group_of
from swe_rl.extension.outline import is_there
from swe_rl.facts.sizes import holds_container, listed_ids, trained_images, trained_images_gb, trained_instances

PLACEHOLDERS = ("instance_id", "instance_id_s", "instance_id_1776")
ENVS = (
    "bugs", "jsonl", "mined", "swe_gym", "swe_gym_lite", "swebench_verified", "swebench_lite", "django201", "r2e_gym",
    "swe_smith", "kodcode", "swe_rebench", "swebench_multilingual", "swebench_live", "harbor", "verifiers", "openenv",
    "humaneval", "swebench_pro", "nemo_gym", "mix",
)  # fmt: skip
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_SHOWN = 5
SPLIT = re.compile(r"([\w.-]+)(?:\[(\d*):(\d*)\])?")


def is_hub_id(text: str, exists: Callable[[str], bool]) -> bool:
    """Tells whether a text is an `ORG/NAME` that is neither built in nor a file or folder here."""
    if text.startswith("builtin:") or text.endswith((".jsonl", ".json", ".parquet")):
        return False
    return bool(_HUB_ID.fullmatch(text)) and not exists(text)


@rule_about(Part.data, Part.rollouts)
def names_known(config: Config, _: Host) -> Iterator[Finding]:
    for kind, ours in ((ExtensionKind.env, ENVS), (ExtensionKind.agent, tuple(AGENT_TOOLS))):
        value = group_of(config, kind).name
        key = f"{kind}.name"
        if value not in ours and reads_key(config, key) and not is_foreign(config, kind):
            known = [*ours, *foreign_names(kind)]
            near = nearest_words(value, known) or known
            yield error("unknown_name", key, f"there is no such {kind}", f"{kind}={' or '.join(near)}")


@rule_about(Part.steps)
def enough_instances(config: Config, host: Host) -> Iterator[Finding]:
    there = trained_instances(config.env, host.read_text)
    wanted = config.rollout.prompts_per_step
    if 0 < there < wanted:
        key = "env.instances"
        if config.env.instance_ids:
            key = "env.instance_ids"
        listed = listed_ids(config.env, host.read_text) is not None
        yield error(
            "instances",
            "rollout.prompts_per_step",
            f"{key if listed else f'env={config.env.name}'} has {there} instances to train on",
            f"rollout.prompts_per_step={there}",
        )


@rule_about(Part.data)
def listed_instances_are_there(config: Config, host: Host) -> Iterator[Finding]:
    """Finds listed instances that the data set lacks, where the ids are in files that can be read here.

    The ids of other data sets are known when those are read.
    """
    env = config.env
    if env.instances or env.instance_ids:
        known = _known_ids(config, host)
    else:
        known = None
    if not known:
        return
    if env.instance_ids and (missing := [name for name in env.instance_ids if name not in known]):
        yield _no_instance_finding("env.instance_ids", missing, known)
    pattern = env.instances if env.instances and "*" in env.instances else None
    listed = listed_ids(replace(env, instance_ids=()), host.read_text)
    if pattern is not None and not any(fnmatchcase(name, pattern) for name in known):
        yield _no_instance_finding("env.instances", [], known)
    elif listed is not None and (not listed or not known.keys() >= set(listed)):
        yield _no_instance_finding("env.instances", [name for name in listed if name not in known], known)


def _no_instance_finding(key: str, missing: Sequence[str], known: Collection[str]) -> Finding:
    words = no_such_instances(missing, list(known))
    return error("no_instance", key, words, f"{key} with ids that there are, or leave it out")


def _known_ids(config: Config, host: Host) -> dict[str, None] | None:
    """Returns the ids of all splits, in their order, or None where those of one of them are not known here."""
    env = config.env
    known: dict[str, None] = {}
    for dataset, columns in ((env.dataset, env.columns), (env.eval_dataset or env.dataset, env.eval_columns)):
        if env.name == "harbor":
            ids = _harbor_tasks(dataset, (env.split, env.eval_split), host)
        else:
            ids = _ids_in_files(env, dataset, columns if dataset != env.dataset else env.columns, host)
        if not ids:
            return None
        known |= dict.fromkeys(ids)
    return known


def _ids_in_files(env: EnvConfig, dataset: str, columns: Mapping[str, str], host: Host) -> list[str]:
    """Returns the ids of rows, or nothing where a row has no id of its own: some formats make it of other columns."""
    files = [dataset] if dataset.endswith(".jsonl") else []
    if env.name == "bugs" and dataset.startswith("builtin:"):
        files = [str(PACKAGE / f"env/bugs/data/{split}.jsonl") for split in ("train", "heldout")]
    rows = [rename_columns(row, columns) for file in files for row in rows_in(host.read_text(file) or "")]
    ids = [str(row["instance_id"]) for row in rows if "instance_id" in row]
    if len(ids) != len(rows):
        return []
    return ids


def _harbor_tasks(dataset: str, splits: Sequence[str], host: Host) -> list[str]:
    """Returns the names of the task folders, as env/harbor finds them."""
    root = dataset.rstrip("/")
    folders = [root, *(f"{root}/{split.partition('[')[0]}" for split in splits)]
    tasks = [f"{folder}/{name}" for folder in folders for name in sorted(host.listing(folder))]
    return [task.rpartition("/")[2] for task in [root, *tasks] if host.exists(f"{task}/task.toml")]


@rule_about(Part.steps, Part.evaluation)
def split_is_there(config: Config, _: Host) -> Iterator[Finding]:
    """Finds a split that the instances that ship do not have. Files have theirs in `host.files_exist`."""
    env = config.env
    splits = ("train", "heldout")
    read = {Part.steps: ("env.split", env.split), Part.evaluation: ("env.eval_split", env.eval_split)}
    for key, split in (read[part] for part in read if part in started_parts(config)):
        if env.name == "bugs" and env.dataset.startswith("builtin:") and split not in splits:
            yield error(
                "split", key, f"env=bugs has the splits {' and '.join(splits)}", f"{key}={splits[key != 'env.split']}"
            )


@rule_between(Part.trainer, Part.evaluation)
def splits_apart(config: Config, _: Host) -> Iterator[Finding]:
    env = config.env
    if (env.eval_dataset or env.dataset) != env.dataset:
        if env.split == env.eval_split:
            yield error(
                "splits",
                "env.eval_split",
                f"names a split of env.dataset={env.dataset} and of env.eval_dataset={env.eval_dataset}",
                f"'env.eval_split=\"{env.split}[0:]\"'",
            )
        return
    shared = find_overlap(env.split, env.eval_split)
    if shared and env.split == env.eval_split:
        yield warning(
            "splits",
            "env.eval_split",
            "the split that is trained on: its score says nothing about unseen instances",
            f"{_two_parts(env)}, or env.eval_dataset=ANOTHER",
        )
    elif shared:
        yield error(
            "splits",
            "env.eval_split",
            f"shares rows {shared[0]} to {'the end' if shared[1] is None else shared[1]} with env.split={env.split}",
            "slices that do not meet, as train[1000:] and train[:1000]",
        )


def _two_parts(env: EnvConfig) -> str:
    if env.name == "bugs":
        return "env.eval_split=heldout"
    return f"'env.split=\"{env.split}[100:]\"' 'env.eval_split=\"{env.split}[:100]\"'"


def find_overlap(first: str, second: str) -> tuple[int, int | None] | None:
    """Returns the rows that two slices of one data set share, or None where they share none.

    The second number is None where the rows go to the end.
    """
    left = SPLIT.fullmatch(first)
    right = SPLIT.fullmatch(second)
    if not left or not right or left.group(1) != right.group(1):
        return None
    start = max(int(left.group(2) or 0), int(right.group(2) or 0))
    ends = [int(end) for end in (left.group(3), right.group(3)) if end]
    end = min(ends) if ends else None
    if end is None or start < end:
        return (start, end)
    return None


@rule_about(Part.data)
def image_names(config: Config, _: Host) -> Iterator[Finding]:
    for key, template in (
        ("env.image_template", config.env.image_template),
        ("env.eval_image_template", config.env.eval_image_template),
    ):
        if template is None:
            continue
        try:
            names = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
        except ValueError:
            names = {template}
        if not names or not names <= set(PLACEHOLDERS):
            yield error(
                "image_template",
                key,
                "names an image for each instance by one of " + ", ".join(f"{{{name}}}" for name in PLACEHOLDERS),
                f"{key}='REGISTRY/NAME.{{instance_id}}:latest'",
            )


@rule_about(Part.grading)
def grading_has_its_place(config: Config, _: Host) -> Iterator[Finding]:
    grading = config.env.grading
    official = grading in (GradingKind.swebench, GradingKind.eval_script)
    # A user's own rows may name a source and are then graded in a prepared folder. That is known when they are read.
    if official and not holds_container(config) and config.env.name not in OWN_ROWS:
        yield error(
            "grading",
            "env.grading",
            f"runs in an instance's own container; sandbox.kind={config.sandbox.kind} has none",
            "sandbox=docker",
        )


@rule_about(Part.rollouts)
def rows_have_a_way(config: Config, host: Host) -> Iterator[Finding]:
    """Finds rows that name no source, which sandboxes without images need.

    What other rows would need is not here.
    """
    env = config.env
    if env.name not in OWN_ROWS or config.sandbox.kind is not SandboxKind.process or not env.dataset.endswith(".jsonl"):
        return
    rows = [rename_columns(row, env.columns) for row in rows_in(host.read_text(env.dataset) or "")]
    rows = [row for row in rows if "instance_id" in row]
    without = [str(row.get("instance_id")) for row in rows if not _has_a_way(row, env.columns)]
    if not without or env.unproven is Unproven.keep:
        return
    shown = f"{', '.join(without[:_SHOWN])}{', ...' if len(without) > _SHOWN else ''}"
    yield error_if(len(without) == len(rows) or env.unproven is Unproven.refuse)(
        "row_without_a_way",
        "env.dataset",
        f"{len(without)} of {len(rows)} rows name no source, which sandbox=process makes folders of: {shown}",
        "sandbox=docker, which uses images; or a column source for each row (docs/engineering/rows.md)",
    )


@rule_about(Part.data)
def columns_are_there(config: Config, host: Host) -> Iterator[Finding]:
    """Finds columns that no row has. Columns of a file that is no .jsonl are looked for when it is read."""
    env = config.env
    if is_foreign(config, ExtensionKind.env):
        return
    tables = (("env.columns", env.columns, env.dataset), ("env.eval_columns", env.eval_columns, env.eval_dataset))
    for key, columns, dataset in tables:
        problems = list(unknown_names(columns, env.name))
        if not problems and columns and (dataset or "").endswith(".jsonl"):
            problems = list(absent_columns(columns, rows_in(host.read_text(str(dataset)) or "")))
        for problem in problems:
            yield error("columns", f"{key}.{problem.name}", problem.message, problem.fix, value=columns[problem.name])
    if env.eval_columns and env.eval_dataset in (None, env.dataset):
        words = "is of env.eval_dataset, which is env.dataset: env.columns holds for both"
        yield error("columns", "env.eval_columns", words, "env.columns", value="set")


def rows_in(text: str) -> Iterator[dict[str, Any]]:
    """Yields the records of a text. What is no record is refused, with its line, when it is read."""
    for line in text.split("\n"):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def _has_a_way(row: dict[str, Any], named: Collection[str] = ()) -> bool:
    """Tells whether a row names its source. `named` are columns of ours that env.columns has."""
    sources = ("source", *(name for name in TREE_COLUMNS if name in named))
    return any(row.get(name) for name in sources) or str(row.get("repo")).startswith("bugs/")


@rule_about(Part.data)
def probe_usable(config: Config, _: Host) -> Iterator[Finding]:
    env = config.env
    if not env.keep or len(set(env.keep)) != len(env.keep):
        kinds = ",".join(env.keep)
        yield error("probe", "env.keep", "names each kind once, and at least one", "env.keep=[mixed]", value=kinds)
    if env.probe is None and tuple(env.keep) != (Keep.mixed,):
        yield error(
            "probe",
            "env.keep",
            "chooses by what a probe found, and there is no env.probe",
            "env.probe=FOLDER of a run of job=eval or job=rollout",
            value=",".join(env.keep),
        )
    if env.name == "bugs" and (env.probe or env.instance_ids or env.max_tests):
        key = "env.max_tests"
        if env.probe:
            key = "env.probe"
        elif env.instance_ids:
            key = "env.instance_ids"
        yield error(
            "probe", key, "env=bugs takes all of its instances, or env.instances", "env.instances=FILE", value="set"
        )


@rule_about(Part.data)
def revision_has_a_hub(config: Config, _: Host) -> Iterator[Finding]:
    env = config.env
    local = env.dataset.startswith("builtin:") or env.dataset.endswith((".jsonl", ".json", ".parquet"))
    if env.revision is not None and local:
        yield error(
            "revision",
            "env.revision",
            f"env.dataset={env.dataset} is not on the hub: it has no revision",
            "env.revision=null",
        )


@rule_about(Part.sandboxes)
def images_fit(config: Config, host: Host) -> Iterator[Finding]:
    images = trained_images(config.env, host.read_text)
    needed = trained_images_gb(config.env, host.read_text)
    disk = config.hardware.disk_gb
    if holds_container(config) and config.runtime.kind == "none" and 0 < disk < needed:
        yield warning(
            "image_disk",
            "env.image_gb",
            f"{images} images are about {needed:.0f} GB, before shared layers; hardware.disk_gb={disk:g}",
            "env.instances=FILE with fewer, or a larger disk for the container engine",
        )


@rule_about(Part.data)
def verifiers_package(config: Config, host: Host) -> Iterator[Finding]:
    """Finds that the package of a verifiers environment is missing.

    Nothing is said where the job runs on another machine, because what is installed there is not known.
    """
    if config.env._target_ != VERIFIERS.env or host.elsewhere or host.submitted:
        return
    if config.env.dataset == "none":
        words = "env=verifiers needs the name of an environment's package"
        yield error("verifiers_package", "env.dataset", words, "env.dataset=PACKAGE")
        return
    module = config.env.dataset.replace("-", "_").split("/")[-1]
    if not is_there(module.partition(".")[0], [*search_folders(config.job.code), *sys.path]):
        words = f"there is no installed package with the module {module}, which an environment of that name is"
        fix = f"pip install {config.env.dataset.split('/')[-1]}, or job.code=[FOLDER] that has it"
        yield error("verifiers_package", "env.dataset", words, fix)
