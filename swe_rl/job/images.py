"""`job=images` lists, checks or pulls the container images of the configured instances.

Invariants:
- An image is named once, however many instances use it.
- A pull is bounded by `sandbox.pull_concurrency` for a registry and repeated `sandbox.pull_retries` times; what fails
  is listed at the end with its instances, and the rest is pulled all the same.
- Images that a row's source builds are built, not pulled.
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from swe_rl.config.choices import ImagesAction, OutputFormat, PullPolicy, SandboxKind
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.dataset.instance import Instance, InstanceError
from swe_rl.env.image_engine import DockerEngine
from swe_rl.env.make import make_env
from swe_rl.env.source_build.image import ensure_image
from swe_rl.env.source_build.program import BuildError
from swe_rl.errors import SweRlError, UserError
from swe_rl.facts.mix import part_configs
from swe_rl.run.components import cache_folder

_ASKED_AT_ONCE = 8
_SHOWN_INSTANCES = 3
# The instances of these run from prepared folders.
_WITHOUT_IMAGES = ("bugs", "kodcode", "humaneval")


@dataclass(slots=True)
class ImageState:
    image: str
    instances: list[str]
    # None says that no engine was asked.
    here: bool | None = None
    size_gb: float | None = None
    # An empty text says that the registry has the image, another one why not; None: it was not asked.
    registry: str | None = None
    built_from: str = ""
    problem: str = ""


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    del folder, origins
    instances = instances_of(config)
    states = states_of(instances)
    engine = _connect_engine(config, required=config.job.images_action is not ImagesAction.list)
    if engine is not None:
        look_up_images(states, engine)
    if config.job.images_action is ImagesAction.check and engine is not None:
        ask_registry([state for state in states if not state.here and not state.built_from], engine)
    if config.job.images_action is ImagesAction.pull and engine is not None:
        absent = {state.image for state in states if not state.here}
        _get_images(config, states, [instance for instance in instances if instance.image in absent], engine)
        look_up_images(states, engine)
    _print_states(config, states, engine.address if engine else None)
    return exit_status(config.job.images_action, states)


def instances_of(config: Config) -> list[Instance]:
    """Returns the instances of both splits, each once. Raises UserError for an environment without images."""
    parts = part_configs(config)
    with_images = [part for part in parts.values() if part.env.name not in _WITHOUT_IMAGES]
    if not with_images:
        raise UserError(f"env={config.env.name} has no images; its instances run from prepared folders")
    return [instance for part in with_images for instance in _instances_with_image(part)]


def _instances_with_image(config: Config) -> list[Instance]:
    """Returns the instances of one environment, which `config` has alone. Raises InstanceError."""
    env = make_env(config.env, cache_folder(config) / "workspaces", SandboxKind.docker, config.grader)
    by_id: dict[str, Instance] = {}
    for split in dict.fromkeys((config.env.split, config.env.eval_split)):
        by_id |= {instance.instance_id: instance for instance in env.instances(split)}
    nameless = [instance.instance_id for instance in by_id.values() if not instance.image]
    if nameless:
        raise InstanceError(
            f"{len(nameless)} instances name no image ({', '.join(nameless[:_SHOWN_INSTANCES])}, ...); set "
            "env.image_template"
        )
    return list(by_id.values())


def states_of(instances: Sequence[Instance]) -> list[ImageState]:
    """Returns one state for each image, in the order of the instances."""
    states: dict[str, ImageState] = {}
    for instance in instances:
        state = states.setdefault(instance.image, ImageState(instance.image, []))
        state.instances.append(instance.instance_id)
        state.built_from = instance.source.origin if instance.source else state.built_from
    return list(states.values())


def look_up_images(states: Sequence[ImageState], engine: DockerEngine) -> None:
    """Looks which images are here. Raises BuildError."""
    for state in states:
        size_bytes = engine.size_bytes(state.image)
        state.here = size_bytes is not None
        state.size_gb = None if size_bytes is None else round(size_bytes / 1e9, 3)


def ask_registry(states: Sequence[ImageState], engine: DockerEngine) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_ASKED_AT_ONCE) as threads:
        for state, answer in zip(
            states, threads.map(lambda state: engine.in_registry(state.image), states), strict=True
        ):
            state.registry = answer


def exit_status(action: ImagesAction, states: Sequence[ImageState]) -> int:
    """Returns 1 where an image is neither here nor at a registry; a listing never fails."""
    if action is ImagesAction.list:
        return 0
    return int(any(not state.here and not (action is ImagesAction.check and _to_be_had(state)) for state in states))


def _to_be_had(state: ImageState) -> bool:
    return bool(state.built_from) or state.registry == ""


def _get_images(config: Config, states: Sequence[ImageState], absent: Sequence[Instance], engine: DockerEngine) -> None:
    """Builds one after the other, then pulls at the same time; a failure is kept with its image."""
    by_image = {state.image: state for state in states}
    cache = cache_folder(config) / "workspaces" / "sources"
    for instance in absent:
        if instance.source is not None:
            try:
                ensure_image(instance, cache, engine, lambda text: print(text, file=sys.stderr, flush=True))
            except (BuildError, InstanceError) as error:
                by_image[instance.image].problem = str(error)
    wanted = list({instance.image: by_image[instance.image] for instance in absent if instance.source is None}.values())
    if wanted:
        asyncio.run(_pull_images(config, wanted, engine.address))


async def _pull_images(config: Config, states: Sequence[ImageState], address: str) -> None:
    from swe_rl.sandbox.container.engine import ContainerEngine
    from swe_rl.sandbox.container.images import Images

    sandbox = replace(config.sandbox, pull=PullPolicy.missing)
    engine = ContainerEngine(address, threads=_ASKED_AT_ONCE, timeout_s=config.sandbox.start_timeout_s)
    images = Images(engine, sandbox)
    done = 0

    async def pull(state: ImageState) -> None:
        nonlocal done
        try:
            await images.ensure(state.image, state.instances[0])
        except SweRlError as error:
            state.problem = str(error)
        done += 1
        verdict = "failed" if state.problem else "pulled"
        print(f"{done}/{len(states)} {verdict}: {state.image}", file=sys.stderr, flush=True)

    await asyncio.gather(*(pull(state) for state in states))
    await engine.close()


def _connect_engine(config: Config, *, required: bool) -> DockerEngine | None:
    """Returns the engine, or None where none is there and a listing does without."""
    try:
        return DockerEngine.of(config.sandbox, os.environ)
    except (BuildError, UserError):
        if required:
            raise
        return None


def _print_states(config: Config, states: Sequence[ImageState], address: str | None) -> None:
    here = sum(bool(state.here) for state in states)
    total_gb = round(sum(state.size_gb or 0.0 for state in states), 3)
    if config.job.format is OutputFormat.json:
        record = {"engine": address, "images": [asdict(state) for state in states], "here": here, "size_gb": total_gb}
        print(json.dumps(record, indent=2))
        return
    table = Table(Column("image", overflow="fold"), "instances", "here", "GB", "otherwise")
    for state in states:
        more = ""
        if len(state.instances) > _SHOWN_INSTANCES:
            more = ", ..."
        known = {True: "yes", False: "no", None: "?"}[state.here]
        size = ""
        if state.size_gb is not None:
            size = f"{state.size_gb:.2f}"
        table.add_row(
            state.image, ", ".join(state.instances[:_SHOWN_INSTANCES]) + more, known, size, _describe_state(state)
        )
    Console().print(table)
    where = "of which"
    if address:
        where = f"on the engine at {address}, {total_gb:g} GB with shared layers counted each time"
    none = " no engine answers: what is here is not known"
    if address:
        none = ""
    print(f"{len(states)} images of {sum(len(state.instances) for state in states)} instances; {here} {where}{none}")


def _describe_state(state: ImageState) -> str:
    if state.problem:
        return state.problem
    if state.here:
        return ""
    if state.built_from:
        return f"built from {state.built_from} (job=prepare)"
    return {None: "", "": "in its registry"}.get(state.registry, state.registry or "")
