"""conf/experiment: each value that is called published names a source of docs/engineering/published.md."""

import pytest
import yaml

from swe_rl.config.compose import compose
from swe_rl.config.composition.values import flatten_config
from tests.test_docs_reference import PAGES

PAGE = PAGES.ROOT / "docs" / "engineering" / "published.md"
PUBLISHED = {path.stem: PAGES.read_published(path.read_text()) for path in sorted(PAGES.EXPERIMENTS.glob("*.yaml"))}
PUBLISHED = {name: values for name, values in PUBLISHED.items() if values}


def test_each_published_value_names_a_source_of_the_page():
    sources = [line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    told = [(name, key, source) for name, values in PUBLISHED.items() for key, (_, source) in values.items()]
    assert len(told) > 80 and len(sources) > 5
    assert [row for row in told if not row[2].startswith(tuple(f"{one}: " for one in sources))] == []


def test_no_comment_calls_a_value_published_without_a_source():
    said = [
        line
        for path in PAGES.EXPERIMENTS.glob("*.yaml")
        for line in path.read_text().splitlines()
        if "# published" in line
    ]
    assert [line for line in said if "# published: " not in line] == []
    assert sum(map(len, PUBLISHED.values())) >= len(said)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_composed_is_what_is_published(name):
    """A later file could overwrite the value that a comment vouches for."""
    composed = compose([f"+experiment={name}"])
    values = flatten_config(composed.config) | composed.choices
    for key, (value, _) in PUBLISHED[name].items():
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
  - override /algo: rloo  # published: THEM: leave one out
  - override /env: bugs
a:
  b: 3  # published: THEM: a script
  c: 4  # ours: the published run had eight
  d:  # all of it
    e: {f: true, g: 2}  # published: THEM: a table
h: "#1"  # published: THEM: default
"""
    assert PAGES.read_published(text) == {
        "algo": ("rloo", "THEM: leave one out"),
        "a.b": ("3", "THEM: a script"),
        "a.d.e.f": ("true", "THEM: a table"),
        "a.d.e.g": ("2", "THEM: a table"),
        "h": ('"#1"', "THEM: default"),
    }
