"""Every option of every group: its file says only what differs."""

import re

import pytest
from omegaconf import OmegaConf

from swe_rl.config.folders import conf_dir, list_options
from swe_rl.config.schema import Config

OPTIONS = [(group, option.name) for group, members in list_options().items() for option in members]


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
