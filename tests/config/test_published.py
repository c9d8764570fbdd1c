"""docs/engineering/published.md against conf/experiment: every value that is called published, and no other.

Each has its source.
"""

import re
from pathlib import Path

import pytest
import yaml

from swe_rl.config.compose import compose
from swe_rl.config.composition.values import flatten_config
from swe_rl.config.folders import conf_dir

PAGE = Path(__file__).parents[2] / "docs" / "engineering" / "published.md"
ENTRY = re.compile(r"^(?P<indent> *)(?P<chosen>- override /)?(?P<key>\w+):(?P<value>.*?)(?:\s+#\s*(?P<comment>.*))?$")


def published_in(text):
    """Full key to value as written, of the entries whose comment, or that of a table around them, says `published`."""
    found, around = {}, []
    for line in text.splitlines():
        entry = ENTRY.match(line)
        if entry is None:
            continue
        while around and around[-1][0] >= len(entry["indent"]):
            around.pop()
        value, said = entry["value"].strip(), (entry["comment"] or "").startswith("published")
        if not value:
            around.append((len(entry["indent"]), entry["key"], said))
        elif said or any(table[2] for table in around):
            names = [] if entry["chosen"] else [name for _, name, _ in around]
            found |= leaves(".".join([*names, entry["key"]]), value)
    return found


def leaves(key, value):
    if not value.startswith("{"):
        return {key: value}
    return {f"{key}.{name}": str(one).lower() for name, one in yaml.safe_load(value).items()}


def in_conf():
    files = sorted((conf_dir() / "experiment").glob("*.yaml"))
    return {(path.stem, *row) for path in files for row in published_in(path.read_text()).items()}


def in_page():
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert all(len(row) == 4 and row[3].strip() for row in rows), "each row has a source"
    return [tuple(cell.strip().strip("`") for cell in row[:3]) for row in rows]


def test_the_table_and_conf_say_the_same():
    rows = in_page()
    assert len(rows) == len(set(rows)) > 80
    missing, stale = in_conf() - set(rows), set(rows) - in_conf()
    lines = ["| " + " | ".join(f"`{cell}`" for cell in row) + " | SOURCE |" for row in sorted(missing)]
    assert not missing, "\n".join(["add to docs/engineering/published.md:", *lines])
    assert not stale, f"conf/experiment does not call published: {sorted(stale)}"


@pytest.mark.parametrize("name", sorted({row[0] for row in in_page()}))
def test_what_is_composed_is_what_is_published(name):
    """A later file could overwrite the value that a comment vouches for."""
    composed = compose([f"+experiment={name}"])
    values = flatten_config(composed.config) | composed.choices
    for key, value in ((key, value) for experiment, key, value in in_page() if experiment == name):
        if "${" not in value:
            assert str(values[key]).lower() in (value.lower(), str(yaml.safe_load(value)).lower(), str(number(value)))


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def test_what_counts_as_published():
    text = """
defaults:
  - override /algo: rloo  # published: leave one out
  - override /env: bugs
a:
  b: 3  # published
  c: 4  # ours: the published run had eight
  d:  # published, all of it
    e: {f: true, g: 2}
h: "#1"  # published default
"""
    assert published_in(text) == {"algo": "rloo", "a.b": "3", "a.d.e.f": "true", "a.d.e.g": "2", "h": '"#1"'}
