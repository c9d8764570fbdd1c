"""Every option of every group: it composes, is named as its file, and its file says only what differs."""

import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from swe_rl.check.check import check_config
from swe_rl.check.findings import Host
from swe_rl.config.compose import compose
from swe_rl.config.folders import conf_dir, list_options
from swe_rl.config.schema import Config
from tests.support.composed import composed_once

README = Path(__file__).parents[2] / "README.md"
GROUPS = README.read_text().partition("## Groups")[2].splitlines()
OPTIONS = [(group, option.name) for group, members in list_options().items() for option in members]

VARIANTS = {"mined_small": "mined", "pdb_rewrite_only": "pdb", "tr_atw01": "tr"}  # the same part with other settings
NAMED = {"experiment", "job", "model", "layout", "router", "env", "hardware", "agent", "algo"}


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_option_composes(group, name):
    sign = "+" if group in ("experiment", "sweep") else ""
    composed = compose([f"{sign}{group}={name}"]) if sign or group == "job" else composed_once(f"{group}={name}")
    assert composed.choices[group] == name
    part = composed.config if group == "experiment" else getattr(composed.config, group, None)
    if group in NAMED:
        assert part.name == VARIANTS.get(name, name), "an option's `name` is its file's"
    if group != "job":
        found = {finding.rule_id for finding in check_config(composed.config, host=Host(environment={}))}
        assert ("available" in found) == is_marked(group, name), "README says what cannot run yet"


def is_marked(group, name):
    [row] = [line for line in GROUPS if line.startswith(f"| `{group}` |")]
    return re.search(rf"\b{name}°", row) is not None


def written(group, name):
    """A file's own values, and what they stand upon: the files of its defaults list over the schema."""
    values = OmegaConf.to_container(OmegaConf.load(conf_dir() / group / f"{name}.yaml"))
    below = OmegaConf.to_container(OmegaConf.structured(getattr(Config(), group)))
    for parent in values.pop("defaults", []):
        if isinstance(parent, str) and parent != "_self_":
            below |= {key: value for part in written(group, parent) for key, value in part.items()}
    return below, values


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, name in OPTIONS if hasattr(Config(), group)])
def test_an_option_file_says_only_what_differs(group, name):
    """Beside its name, and a value of a paper's that names the section."""
    text = (conf_dir() / group / f"{name}.yaml").read_text()
    quoted = set(re.findall(r"(?m)^(\w+): .*# section", text)) | {"name", "kind"}
    below, values = written(group, name)
    assert [key for key, value in values.items() if key not in quoted and below.get(key, ...) == value] == []
