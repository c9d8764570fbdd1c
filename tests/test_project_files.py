"""Files that hosting sites and tools read: complete in form, and in agreement with the package."""

import tomllib
from pathlib import Path

import pytest
import yaml

from swe_rl.version import __version__

ROOT = Path(__file__).parent.parent
TEMPLATES = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")


def read(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_citation_is_of_this_version_and_license():
    cited = read("CITATION.cff")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (cited["version"], cited["license"], cited["title"]) == (__version__, project["license"], project["name"])
    assert {"cff-version", "message", "authors"} <= cited.keys() and all(who["name"] for who in cited["authors"])


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_an_issue_template_has_what_a_form_needs(path):
    form = read(path)
    assert form["name"] and form["description"] and form["body"]
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids)) and all(field["attributes"]["label"] for field in form["body"])
    assert all(field["type"] in {"textarea", "input", "dropdown", "checkboxes"} for field in form["body"])


def test_hooks_are_what_ci_runs_and_fetch_nothing():
    configured = read(".pre-commit-config.yaml")["repos"]
    assert TEMPLATES and [repo["repo"] for repo in configured] == ["local"]
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    for hook in configured[0]["hooks"]:
        command = hook["entry"].replace(" --force-exclude", "")
        assert command in ci and hook["language"] == "system"
