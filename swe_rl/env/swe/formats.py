"""From a data set's own columns to an Instance: which format a row is in, and what its image is called.

Invariants:
- The format is recognised by a row's columns, not by the name of the data set: a mirror or an extract reads the same.
- A row's own image comes before the configuration's template.
- What is missing or malformed is said with the row's place and the column.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from swe_rl.env.instance import Instance
from swe_rl.env.records import Row
from swe_rl.env.swe import r2e_gym, swe_smith
from swe_rl.hardware.preflight.image_names import image_of

_IMAGE_COLUMNS = ("image", "image_name", "docker_image")
_NESTED = ("instance", "extra_info")  # rows made for a trainer keep the record in one of these


def to_instances(rows: Sequence[Row], image_template: str | None) -> list[Instance]:
    """Raises InstanceError."""
    return [to_instance(row.record, row.where, image_template) for row in rows]


def to_instance(record: Mapping[str, Any], where: str, image_template: str | None = None) -> Instance:
    """Raises InstanceError naming `where` and the column."""
    record = _unnested(record)
    if r2e_gym.is_row(record):
        return r2e_gym.to_instance(record, where)
    if swe_smith.is_row(record):
        return swe_smith.to_instance(record, where)
    one = Instance.from_record(record, where)
    image = next((str(record[column]) for column in _IMAGE_COLUMNS if record.get(column)), "")
    if not image and image_template:
        image = image_of(image_template, one.instance_id)
    return replace(one, image=image)


def _unnested(record: Mapping[str, Any]) -> Mapping[str, Any]:
    for column in _NESTED:
        inner = record.get(column)
        if "instance_id" not in record and isinstance(inner, Mapping) and "instance_id" in inner:
            return inner
    return record
