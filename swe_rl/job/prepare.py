"""`job=prepare`: data sets made ready before a run.

env=bugs: the embedded instances made anew, each proven. Others: the rows of each split as one parquet file with a
manifest; then, for rows that name their source, trees, environments and images.

Invariants:
- The embedded instances' files are replaced only when all instances of all splits were proven.
- A split that is prepared already is left as it is; so is every tree, environment and image. An interrupted
  preparation goes on where it was.
- Two revisions of one data set are never mixed.
"""

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from swe_rl.config.choices import SandboxKind
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.env.bugs.env import DATA, SPLITS
from swe_rl.env.bugs.generate import generate
from swe_rl.env.instance import Instance, InstanceError
from swe_rl.env.records import read_instances, write_instances
from swe_rl.env.source_build.program import BuildError
from swe_rl.run.components import cache_folder

COUNTS = {"train": 64, "heldout": 32}
SEED = 0
_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    del folder, origins
    console = Console()
    if config.env.name == "bugs":
        return _prove_bugs(console)
    cache = cache_folder(config) / "workspaces"
    instances: dict[str, Instance] = {}
    for split in dict.fromkeys((config.env.split, config.env.eval_split)):
        instances |= {instance.instance_id: instance for instance in _prepare_split(config, split, cache, console)}
    return _build_sources(config, [instance for instance in instances.values() if instance.source], cache, console)


def _prove_bugs(console: Console) -> int:
    made: dict[str, list[Instance]] = {}
    with Progress(*_COLUMNS, console=console) as progress:
        for split in SPLITS:
            bar = progress.add_task(f"proving {split}", total=COUNTS[split])
            made[split] = generate(split, COUNTS[split], SEED, lambda _, bar=bar: progress.advance(bar))  # type: ignore[misc]
    DATA.mkdir(exist_ok=True)
    for split, instances in made.items():
        path = DATA / f"{split}.jsonl"
        same = path.is_file() and read_instances(path) == instances
        if not same:
            write_instances(path, instances)
        console.print(f"{split}: {len(instances)} proven instances, {'unchanged' if same else 'written'}: {path}")
    return 0


def _prepare_split(config: Config, split: str, cache: Path, console: Console) -> list[Instance]:
    """The chosen instances of a split, prepared. Raises InstanceError."""
    from swe_rl.env.kodcode.read import read_split as read_functions
    from swe_rl.env.swe.prepared import Identity, manifest_of, prepared_instances, write_prepared
    from swe_rl.env.swe.read import read_split
    from swe_rl.env.swe.splits import chosen

    identity = Identity.of(config.env, split)
    instances = prepared_instances(config.env, split, cache)
    if instances is None:
        console.print(f"{split}: reading {identity.dataset}")
        read = (read_functions if config.env.name == "kodcode" else read_split)(config.env, split)
        _refuse_mixture(identity.path(cache), asdict(identity), read.revision)
        facts = {
            "source": identity.dataset,
            "revision": read.revision,
            "source_rows": read.source_rows,
            "split_rows": read.split_rows,
            "dropped": {reason: {"count": len(names), "instances": names} for reason, names in read.dropped.items()},
        }
        write_prepared(cache, identity, read.instances, facts)
        instances = read.instances
        for reason, names in read.dropped.items():
            console.print(f"{split}: {len(names)} of {read.source_rows} rows left out: {reason}")
    console.print(f"{split}: {len(instances)} instances in {manifest_of(identity.path(cache))}", soft_wrap=True)
    return chosen(config.env, instances) if split == config.env.split else list(instances)


def _refuse_mixture(path: Path, made_for: dict[str, object], revision: str) -> None:
    """Raises InstanceError when another split of the same data set was prepared from another revision."""
    from swe_rl.env.swe.prepared import manifests_beside

    for other, manifest in manifests_beside(path):
        same = manifest["made_for"].get("wanted_revision") == made_for["wanted_revision"]
        hub = not str(revision).startswith("sha256:")
        if same and hub and manifest.get("revision") != revision:
            raise InstanceError(
                f"{manifest['made_for']['split']} of {manifest.get('source')} was prepared from revision "
                f"{manifest.get('revision')}, and the hub is at {revision} now: one run must not mix them. Remove "
                f"{other.parent}, or stay with the old one: env.revision={manifest.get('revision')}"
            )


def _build_sources(config: Config, instances: list[Instance], cache: Path, console: Console) -> int:
    """Folders for process sandboxes, images for containers; 1 if one cannot be made, after all others were."""
    failed: dict[str, str] = {}
    if not instances:
        return 0
    make = _maker(config, cache, console)
    with Progress(*_COLUMNS, console=console) as progress:
        bar = progress.add_task("building", total=len(instances))
        for instance in instances:
            progress.update(bar, description=instance.instance_id)
            try:
                make(instance)
            except (BuildError, InstanceError) as error:
                failed[instance.instance_id] = str(error)
                progress.console.print(f"{instance.instance_id}: {error}", markup=False)
            progress.advance(bar)
    kind = "folders" if config.sandbox.kind is SandboxKind.process else "images"
    console.print(f"{len(instances) - len(failed)} of {len(instances)} {kind} are ready")
    return int(bool(failed))


def _maker(config: Config, cache: Path, console: Console) -> Callable[[Instance], object]:
    from swe_rl.config.engine_address import engine_address
    from swe_rl.env.image_engine import DockerEngine
    from swe_rl.env.source_build.build import build
    from swe_rl.env.source_build.image import ensure_image

    sources = cache / "sources"
    if config.sandbox.kind is SandboxKind.process:
        return lambda instance: build(instance, sources)
    kind = config.sandbox.kind if config.sandbox.kind is SandboxKind.podman else SandboxKind.docker
    engine = DockerEngine.connect(engine_address(replace(config.sandbox, kind=kind), os.environ))
    return lambda instance: ensure_image(
        instance, sources, engine, lambda text: console.print(text, markup=False, soft_wrap=True)
    )
