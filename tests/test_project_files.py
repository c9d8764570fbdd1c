"""Files that hosting sites and tools read: complete in form, and in agreement with the package."""

import re
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


@pytest.mark.parametrize(("minor", "refused"), [(8, True), (10, True), (11, False), (13, False)])
def test_the_build_refuses_a_python_that_is_too_old_with_the_way_out(minor, refused):
    """The build's own packages are not installed here, so that the hook's base class is a stand-in."""
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "custom" in metadata["tool"]["hatch"]["metadata"]["hooks"]
    source = (ROOT / "hatch_build.py").read_text(encoding="utf-8")
    names = {}
    exec(re.sub(r"^from hatchling.*$", "MetadataHookInterface = object", source, flags=re.MULTILINE), names)
    assert metadata["project"]["requires-python"] == ">=" + ".".join(map(str, names["OLDEST"]))
    if refused:
        with pytest.raises(SystemExit, match=rf"needs Python 3\.11 or newer, and this is Python 3\.{minor}\..*-m venv"):
            names["refuse_old_python"]((3, minor))
    else:
        names["refuse_old_python"]((3, minor))


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


def sections_of_changes():
    """The lines below each heading of CHANGELOG.md, empty lines left out, by heading."""
    parts = re.split(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        heading: [line for line in body.splitlines() if line]
        for heading, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_the_newest_release_of_the_changes_is_this_version():
    unreleased, newest, *_ = sections_of_changes()
    assert unreleased == "Unreleased"
    assert re.fullmatch(rf"{re.escape(__version__)} - \d{{4}}-\d\d-\d\d", newest)


def test_what_is_not_released_yet_stays_short():
    """A list that nobody reads to its end tells nobody what is new: release before it is longer."""
    assert len(sections_of_changes()["Unreleased"]) <= 40


def test_a_release_tells_its_changes_on_a_few_pages():
    lengths = {heading: len(lines) for heading, lines in sections_of_changes().items()}
    assert len(lengths) > 4
    assert {heading: length for heading, length in lengths.items() if length > 120} == {}


def test_lines_of_the_changes_are_short():
    lines = [line for section in list(sections_of_changes().values())[:2] for line in section]
    assert [line for line in lines if len(line) > 160] == []


def test_the_one_workflow_runs_the_checks_of_everybody():
    [workflow] = (ROOT / ".github" / "workflows").iterdir()
    jobs = read(workflow)["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert commands == ["CI=true bash .ci/run"]
