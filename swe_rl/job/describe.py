"""`job=describe` prints the documentation of a key (`job.topic=rollout.n`), a group (`rollout`) or an option.

An option is written `rollout/swe`.

Invariants:
- Values shown are those of the composition at hand, with their origin; secrets are masked.
- Without a topic every group is shown with its options. Those of a `--config-dir` are among them, with their file.
"""

import json
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from swe_rl.check.findings import DEFAULTS
from swe_rl.config.choices import OutputFormat
from swe_rl.config.composition.values import flatten_config
from swe_rl.config.explain import ConfigError
from swe_rl.config.folders import Option, describe_clash, find_offered, is_ours, list_options
from swe_rl.config.keys import comment_of, describe_type, key_types, keys_of, nearest_keys, nearest_words
from swe_rl.config.provenance import Origins
from swe_rl.config.ranges import ranges_of
from swe_rl.config.schema import Config
from swe_rl.config.spelling.foreign_keys import our_key
from swe_rl.host.terminal import format_table, terminal_width, wrap_text

Record = dict[str, Any]
# A line of text is so long without a terminal, or on a wider one.
_LONGEST_LINE = 110


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    del folder
    records = describe_topic(config, config.job.topic, origins)
    if config.job.format == OutputFormat.json:
        print(json.dumps(records, indent=2))
    else:
        columns = min(_LONGEST_LINE, terminal_width(sys.stdout, _LONGEST_LINE))
        print("\n\n".join(_as_text(record, columns) for record in records))
    return 0


def describe_topic(config: Config, topic: str | None, origins: Origins | None = None) -> list[Record]:
    """Returns one record for each thing that the topic names. Raises ConfigError for a topic that names nothing."""
    groups = _all_options(origins)
    if topic is None:
        return [_group_record(name, members) for name, members in groups.items()]
    if topic in groups and not is_dataclass(key_types().get(topic)):
        return [_group_record(topic, groups[topic])]
    group, slash, name = topic.replace("=", "/").rpartition("/")
    if slash:
        return [_option_record(groups, group, name)]
    if is_dataclass(key_types().get(topic)):
        head = _group_record(topic, groups.get(topic, []))
        return [head, *(_key_record(config, key, origins) for key in keys_of(topic))]
    if topic not in key_types() and topic not in flatten_config(config):
        known = our_key(topic)
        if known:
            near = [known]
        else:
            near = [*nearest_words(topic, groups), *nearest_keys(topic)][:3]
        hint = ""
        if near:
            hint = f" Did you mean {' or '.join(near)}?"
        raise ConfigError(f"job.topic={topic} is neither a key nor a group of conf/.{hint}")
    return [_key_record(config, topic, origins)]


def _all_options(origins: Origins | None) -> dict[str, list[Option]]:
    """Returns our options, then the user's own; where two have one name, the one that is read comes first."""
    groups = list_options()
    for group, members in (origins.own() if origins else {}).items():
        groups[group] = [*members, *groups.get(group, [])] if group == "sweep" else [*groups.get(group, []), *members]
    return groups


def _group_record(name: str, members: list[Option]) -> Record:
    """Returns a group's record. `own` has files of the user's options, and what becomes of one called as
    one of ours.
    """
    summaries: dict[str, str] = {}
    for option in members:
        summaries.setdefault(option.name, option.summary)
    for row in find_offered().get(name, {}).values():
        summaries.setdefault(row.name, f"{row.target}, of the package {row.package}")
    files = {
        option.name: f"{option.path} {describe_clash(option)}".rstrip() for option in members if not is_ours(option)
    }
    return {"group": name, "options": summaries} | ({"own": files} if files else {})


def _option_record(groups: dict[str, list[Option]], group: str, name: str) -> Record:
    chosen = next((option for option in groups.get(group, []) if option.name == name), None)
    if chosen is None and (row := find_offered().get(group, {}).get(name)) is not None:
        return {
            "option": f"{group}={name}",
            "about": f"of the package {row.package}",
            "file": f"_target_: {row.target}\n",
        }
    if chosen is None:
        known = [option.name for option in groups.get(group, [])]
        raise ConfigError(
            f"job.topic={group}/{name}: no such option. Options of {group}: {', '.join(known) or 'none'}."
        )
    return {"option": f"{group}={name}", "about": chosen.summary, "file": chosen.path.read_text("utf-8", "replace")}


def _key_record(config: Config, key: str, origins: Origins | None) -> Record:
    values = {
        name: value for name, value in flatten_config(config).items() if name == key or name.startswith(f"{key}.")
    }
    return {
        "key": key,
        "type": _describe_type(key),
        "value": values[key] if key in values else {name[len(key) + 1 :]: value for name, value in values.items()},
        "from": origins.of(key) if origins else "",
        "about": comment_of(key, _option_file(key, origins)),
    }


def _describe_type(key: str) -> str:
    group, _, name = key.rpartition(".")
    if key not in key_types():
        return ""
    allowed = ranges_of(key_types()[group]).get(name) if group else None
    return describe_type(key_types()[key]) + (f", {allowed.said()}" if allowed else "")


def _option_file(key: str, origins: Origins | None) -> Path | None:
    group = key.partition(".")[0]
    chosen = origins.choices.get(group) if origins else None
    return next((option.path for option in _all_options(origins).get(group, []) if option.name == chosen), None)


def _as_text(record: Record, columns: int) -> str:
    if "group" in record:
        files = {name: f"yours: {path}" for name, path in record.get("own", {}).items()}
        lines = [*format_table(record["options"], columns), *format_table(files, columns)]
        return "\n".join([f"{record['group']}=", *lines])
    if "option" in record:
        return f"{record['option']}\n{record['file'].rstrip()}"
    value = record["value"]
    if isinstance(value, dict):
        rows = [f"    {name:<28}{json.dumps(row)}" for name, row in value.items()]
    else:
        rows = []
    head = record["key"] if rows else f"{record['key']} = {json.dumps(value)}"
    where = ""
    if record["from"]:
        where = "; the default" if record["from"] == DEFAULTS else f"; from {record['from']}"
    said = [line for text in (record["about"], f"{record['type']}{where}") for line in wrap_text(text, columns, "    ")]
    return "\n".join([head, *rows, *said])
