"""`job=prepare` makes data sets ready before a run.

With env=bugs the embedded instances are made anew, each proven. Otherwise the rows of each split become one parquet
file with a manifest; then, for rows that name their source, trees, environments and images, and the proof that the gold
patch passes there and a change that fixes nothing does not.

Invariants:
- The embedded instances' files are replaced only when all instances of all splits were proven.
- A split that is prepared already is left as it is; so is every tree, environment, image and proof. An interrupted
  preparation goes on where it was.
- An instance that cannot be made or proven ends nothing: it is named with the reason.
- Issues that rows lack are written first, with `env.issues` and `engine=endpoint`; the split has them then.
- Two revisions of one data set are never mixed.
"""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from swe_rl.config.choices import SandboxKind
from swe_rl.config.parts import writes_issues
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.dataset.records import read_instances, write_instances
from swe_rl.env.bugs.env import DATA, SPLITS
from swe_rl.env.bugs.generate import generate_instances
from swe_rl.env.make import make_env
from swe_rl.env.source_build.program import BuildError
from swe_rl.env.swe.env import EMBEDDED, SweEnv, sources_folder
from swe_rl.errors import count_noun
from swe_rl.logger.counted_work import counted_work
from swe_rl.run import event_loop
from swe_rl.run.components import cache_folder, scratch_root
from swe_rl.run.parts import NothingToDoError, run_for_parts
from swe_rl.run.proving import print_standings, prove_here
from swe_rl.sandbox.sandbox import Workspace

COUNTS = {"train": 64, "heldout": 32}
SEED = 0
PROVEN_IN = (SandboxKind.process, SandboxKind.docker, SandboxKind.podman)
_SHOWN = 10


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    """Prepares each part of a mix. Raises UserError."""
    del folder, origins
    return run_for_parts(config, _prepare)


def _prepare(config: Config) -> int:
    console = Console()
    if config.env.name == "bugs":
        return _prove_bugs(console)
    if config.env.name == "harbor":
        raise NothingToDoError(
            "env=harbor: task folders are read as they are, and there is nothing to prepare; job=validate proves each "
            "task by its solution. An image is built by your engine: docker build -t NAME TASK/environment"
        )
    if config.env.name in ("nemo_gym", "openenv"):
        console.print(f"env={config.env.name} has nothing to prepare: its server has what is played")
        return 0
    if config.env.name in ("verifiers", "humaneval"):
        console.print(f"env={config.env.name} has nothing to prepare: its package brings its rows")
        return 0
    cache = cache_folder(config) / "workspaces"
    splits = list(dict.fromkeys((config.env.split, config.env.eval_split)))
    if writes_issues(config):
        _write_issues(config, splits, console)
    for split in splits:
        _prepare_split(config, split, cache, console)
    env = make_env(config.env, cache, config.sandbox.kind, config.grader)
    if not isinstance(env, SweEnv):
        return 0
    instances = {instance.instance_id: instance for split in splits for instance in env.chosen(split)}
    _name_without_a_way(config, instances.values(), console)
    return _prove_sources(config, env, list(instances.values()), console)


def _write_issues(config: Config, splits: Sequence[str], console: Console) -> None:
    """Has the issues written that rows lack. Raises UserError, EngineError, DiskError."""
    from swe_rl.env.swe.read import read_whole_split
    from swe_rl.run.issues import write_issues

    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    rows = {row.instance_id: row for split in splits for row in read_whole_split(config.env, split)}
    event_loop.run_job(write_issues(config, list(rows.values()), say))


def _name_without_a_way(config: Config, instances: Iterable[Instance], console: Console) -> None:
    """Names rows of which nothing can be made for these sandboxes."""
    if config.sandbox.kind is not SandboxKind.process:
        return
    names = [row.instance_id for row in instances if row.source is None and not row.repo.startswith(EMBEDDED)]
    if names:
        more = ""
        if len(names) > _SHOWN:
            more = f" and {len(names) - _SHOWN} more"
        console.print(
            f"{len(names)} instances have no column 'source', which sandbox=process needs: "
            f"{', '.join(names[:_SHOWN])}{more}; with sandbox=docker their images are used",
            markup=False,
            soft_wrap=True,
        )


def _prove_bugs(console: Console) -> int:
    made: dict[str, list[Instance]] = {}
    for split in SPLITS:
        with counted_work(console, f"proving {split}", COUNTS[split]) as count_item:
            made[split] = generate_instances(split, COUNTS[split], SEED, lambda _, count=count_item: count())  # type: ignore[misc]
    DATA.mkdir(exist_ok=True)
    for split, instances in made.items():
        path = DATA / f"{split}.jsonl"
        same = path.is_file() and read_instances(path) == instances
        if not same:
            write_instances(path, instances)
        console.print(
            f"{split}: {count_noun(len(instances), 'proven instance')}, {'unchanged' if same else 'written'}: {path}"
        )
    return 0


def _prepare_split(config: Config, split: str, cache: Path, console: Console) -> None:
    """Prepares a split. Raises InstanceError."""
    from swe_rl.env.kodcode.read import read_split as read_functions
    from swe_rl.env.swe.prepared import PreparedIdentity, manifest_of, prepared_instances, write_prepared
    from swe_rl.env.swe.read import read_split

    identity = PreparedIdentity.of(config.env, split)
    instances = prepared_instances(config.env, split, cache)
    if instances is None:
        console.print(f"{split}: reading {identity.dataset}")
        read = (read_functions if config.env.name == "kodcode" else read_split)(config.env, split)
        _refuse_mixture(identity.path(cache), identity.record, read.revision)
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
    console.print(
        f"{split}: {count_noun(len(instances), 'instance')} in {manifest_of(identity.path(cache))}", soft_wrap=True
    )


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


def _prove_sources(config: Config, env: SweEnv, chosen: list[Instance], console: Console) -> int:
    """Proves trees, environments and, for containers, images of the rows that name a source."""
    instances = [row for row in chosen if row.source]
    if not instances:
        return 0
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    if config.sandbox.kind not in PROVEN_IN:
        return _build_only(config, instances, say)
    todo = [instance for instance in instances if not env.is_settled(instance)]
    if len(todo) < len(instances):
        say(f"{len(instances) - len(todo)} of {len(instances)} instances were tried before, and nothing changed since")
    if config.sandbox.kind is SandboxKind.process:
        provable = None
    else:
        provable = _Imaged(env, _image_maker(config, say))
    proofs = event_loop.run_job(prove_here(config, env, todo, scratch_root(config), say, provable))
    untried = {instance.instance_id for instance in todo} - {proof.instance_id for proof in proofs}
    # job=validate tries these.
    images_of_others = config.sandbox.kind is not SandboxKind.process
    return print_standings(config, env, instances if images_of_others else chosen, untried, say)


class _Imaged:
    """An environment whose images are made before they are used."""

    def __init__(self, env: SweEnv, make: Callable[[Instance], object]) -> None:
        self._make = make
        self._env = env
        self.grade = env.grade
        self.run_tests = env.run_tests
        self.released = env.released
        self.environment_digest = env.environment_digest
        self.digests = env.digests
        self.nearer = env.nearer

    def workspace(self, instance: Instance) -> Workspace:
        """Returns the workspace. Raises InstanceError, BuildError."""
        self._make(instance)
        return self._env.workspace(instance)


def _build_only(config: Config, instances: list[Instance], say: Callable[[str], None]) -> int:
    """Builds images for sandboxes of another kind than those of this machine.

    Returns 1 if one cannot be made, after all others.
    """
    failed: dict[str, str] = {}
    make = _image_maker(config, say)
    for number, instance in enumerate(instances, start=1):
        try:
            make(instance)
        except (BuildError, InstanceError) as error:
            failed[instance.instance_id] = str(error)
            say(f"[{number}/{len(instances)}] {instance.instance_id}: {error}")
    say(f"{len(instances) - len(failed)} of {len(instances)} images are ready; job=validate proves them")
    return int(bool(failed))


def _image_maker(config: Config, say: Callable[[str], None]) -> Callable[[Instance], object]:
    from swe_rl.env.image_engine import DockerEngine
    from swe_rl.env.source_build.build import build_source
    from swe_rl.env.source_build.image import ensure_image

    sources = sources_folder(cache_folder(config) / "workspaces")
    engine = DockerEngine.of(config.sandbox, os.environ)
    lock = threading.Lock()

    def make(instance: Instance) -> None:
        if instance.source is not None:
            # It is made beside others; what follows shares images.
            build_source(instance, sources)
        with lock:
            ensure_image(instance, sources, engine, say)

    return make
