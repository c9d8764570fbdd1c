"""Files of other systems (`job.imports=[verl_oh.yaml]`), compared with this configuration: both places are named.

Invariants:
- An imported file changes nothing; it is read, and what contradicts is an error.
- A key that nothing here reads is named, so that nobody believes that it has an effect.
"""

from collections.abc import Iterator
from typing import Any

from swe_rl.check.findings import Finding, Host, about, error, value_at, warning
from swe_rl.config.foreign_keys import SAME
from swe_rl.config.schema import Config
from swe_rl.config.yaml_text import YamlError, parse

_LISTED = 8


@about()
def imported(config: Config, host: Host) -> Iterator[Finding]:
    for path in config.job.imports:
        text = host.read_text(path)
        if text is None:
            yield error(
                "import",
                "job.imports",
                "there is no such file",
                "job.imports=[PATH of a YAML or .conf file]",
                value=path,
            )
            continue
        try:
            values = dict(_flat(_read(text)))
        except YamlError as broken:
            line = str(broken).splitlines()[-1].strip()
            yield error(
                "import", "job.imports", f"cannot be read: {line}", "a YAML file, or lines of NAME=VALUE", value=path
            )
            continue
        yield from _compare(config, path, values)


def _compare(config: Config, path: str, values: dict[str, Any]) -> Iterator[Finding]:
    for foreign, given in values.items():
        key = SAME.get(foreign)
        if key is None or str(given).startswith("$"):
            continue
        ours = value_at(config, key)
        if not _same(ours, given):
            yield error(
                "import_differs",
                key,
                f"{path} has {foreign}={given}; both mean the same, and one of them would be ignored",
                f"{key}={given}, or change {foreign} there",
            )
    unread = [foreign for foreign in values if foreign not in SAME]
    if unread:
        more = f" and {len(unread) - _LISTED} more" if len(unread) > _LISTED else ""
        yield warning(
            "import_unread",
            "job.imports",
            f"nothing here reads {', '.join(unread[:_LISTED])}{more}",
            "our keys instead: `job=describe` lists them",
            value=path,
        )


def _read(text: str) -> Any:
    """YAML, or the NAME=VALUE lines of shell scripts."""
    lines = [line.strip().removeprefix("export ") for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if lines and all("=" in line.split("#")[0] and ":" not in line.split("=")[0] for line in lines):
        pairs = (line.partition("=") for line in lines)
        return {name.strip(): parse(value.split(" #")[0].strip()) for name, _, value in pairs}
    return parse(text)


def _flat(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for name, value in node.items():
            yield from _flat(value, f"{key}.{name}" if key else str(name))
    elif key:
        yield key, node


def _same(ours: Any, given: Any) -> bool:
    try:
        return float(ours) == float(given)
    except (TypeError, ValueError):
        return str(ours) == str(given)
