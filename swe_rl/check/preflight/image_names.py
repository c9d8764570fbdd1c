"""Which container images a run needs, and what a registry or an engine calls them.

Invariants:
- Only files of this machine are read; the ids of a data set of the hub are not known here.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from swe_rl.check.columns import renamed
from swe_rl.config.schema import Config, EnvConfig
from swe_rl.plan.sizes import ReadText, listed_ids

HUB = "docker.io"
_COLUMNS = ("image_name", "image", "docker_image")
_SPELLINGS = {"instance_id": "__", "instance_id_s": "_s_", "instance_id_1776": "_1776_"}

_Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """The instances of a split that are used: all, those listed, or those that match."""

    ids: tuple[str, ...] | None = None
    pattern: str = "*"

    def has(self, instance_id: str) -> bool:
        return instance_id in self.ids if self.ids is not None else fnmatchcase(instance_id, self.pattern)


def needed_images(config: Config, read_text: ReadText) -> list[str] | None:
    """Names in the order of the instances, each once; None where they are known only when the data set is read."""
    env = config.env
    trained = _of_split(env.dataset, env.columns, env.image_template, choice_of(env, read_text), read_text)
    if trained is None:
        return None
    evaluated = None
    if env.eval_dataset is not None:
        template = env.eval_image_template or env.image_template
        evaluated = _of_split(env.eval_dataset, env.eval_columns, template, Choice(), read_text)
    return list(dict.fromkeys([*trained, *(evaluated or ())]))


def image_of(template: str, instance_id: str) -> str:
    """`a/b.{instance_id_s}` and `django__django-1` make `a/b.django_s_django-1`; image names are lower case."""
    name = template
    for field, separator in _SPELLINGS.items():
        name = name.replace(f"{{{field}}}", instance_id.replace("__", separator).lower())
    return name


def full_name(name: str) -> str:
    """`docker.io/library/python:latest` for `python`: every name with its registry, and a tag or a digest."""
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"{HUB}/library/{name}"
    elif not ("." in first or ":" in first or first == "localhost"):
        name = f"{HUB}/{name}"
    tagged = "@" in name or ":" in name.rpartition("/")[2]
    return name if tagged else f"{name}:latest"


def from_hub(names: Iterable[str]) -> list[str]:
    return [name for name in names if full_name(name).startswith(f"{HUB}/")]


def absent_images(names: Iterable[str], local: Iterable[str]) -> list[str]:
    """podman calls an image built here `localhost/NAME`, so a name without a registry may mean that."""
    known = {full_name(name) for name in local}
    return [name for name in names if not known & {full_name(name), full_name(f"localhost/{name}")}]


def _of_split(
    dataset: str, columns: Mapping[str, str], template: str | None, choice: Choice, read_text: ReadText
) -> list[str] | None:
    rows = _rows(dataset, columns, read_text)
    if rows is not None:
        return [name for row in rows if choice.has(_id(row)) and (name := _of_row(row, template))]
    if template is not None and "{" not in template:
        return [template]
    if template is not None and choice.ids is not None:
        return [image_of(template, instance_id) for instance_id in choice.ids]
    return None


def _of_row(row: _Row, template: str | None) -> str | None:
    """A row's own image comes before the template's."""
    image = next((str(row[column]) for column in _COLUMNS if row.get(column)), None)
    return image or (image_of(template, _id(row)) if template else None)


def _id(row: _Row) -> str:
    return str(row.get("instance_id", ""))


def choice_of(env: EnvConfig, read_text: ReadText) -> Choice:
    """What `env.instance_ids` and `env.instances` leave: ids, a file of them, `#` for comments, or a pattern."""
    return Choice(listed_ids(env, read_text), env.instances or "*")


def _rows(dataset: str, columns: Mapping[str, str], read_text: ReadText) -> list[_Row] | None:
    """Records of a local file; a malformed line is the job's to complain about."""
    if not dataset.endswith(".jsonl") or (text := read_text(dataset)) is None:
        return None
    return [renamed(row, columns) for line in text.splitlines() if isinstance(row := _parsed(line), dict)]


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
