"""Swaps, sites and edits: what is injected is undone by exactly the command that a person would type."""

import subprocess

import pytest

from swe_rl.env.bugs.edit import SwapEdit, look_command, possible_edits, shown_lines, usable_sites
from swe_rl.env.bugs.mutation import PAIRS, Swap, all_swaps, find_sites, matches_line, split_swaps
from swe_rl.env.bugs.statement import hint_words, swap_families
from swe_rl.env.bugs.workspace import PACKAGES

SOURCE = '''def clamp(value, low, high):
    """At least low, at most high."""
    if value < low and low is not None:
        return low
    if not value:
        return max(low, 0)
    items = [value][0]
    return value + 1

def other(text):
    return text.lower()
'''
MODULES = sorted(path for path in PACKAGES.glob("*/*/*/*.py") if path.parent.name != "tests")
WITH_CODE = [path for path in MODULES if path.name != "__init__.py"]


def test_the_splits_share_no_variant():
    train, heldout = split_swaps("train"), split_swaps("heldout")
    assert not set(train) & set(heldout)
    assert set(train) | set(heldout) == set(all_swaps())
    assert {one.family for one in train} == {one.family for one in heldout} == set(PAIRS)
    assert len(PAIRS) >= 8 and set(swap_families()) == set(PAIRS)


def test_sites_name_the_function_and_the_line():
    found = {(site.function, site.line, site.swap.right, site.swap.wrong) for site in find_sites(SOURCE, all_swaps())}
    assert ("clamp", 3, " < ", " <= ") in found
    assert ("clamp", 3, " and ", " or ") in found
    assert ("clamp", 3, " is not None", " is None") in found
    assert ("clamp", 5, "if not ", "if ") in found
    assert ("other", 11, ".lower(", ".upper(") in found
    assert not [site for site in find_sites(SOURCE, all_swaps()) if site.line in (1, 2)]


@pytest.mark.parametrize("swap", all_swaps(), ids=lambda swap: f"{swap.family}:{swap.right.strip()}")
def test_a_swap_is_its_own_way_back(swap: Swap):
    for module in MODULES:
        for line in module.read_text().split("\n"):
            if matches_line(swap, line):
                mutated = line.replace(swap.right, swap.wrong, 1)
                assert mutated != line and mutated.replace(swap.wrong, swap.right, 1) == line


@pytest.mark.parametrize("module", WITH_CODE, ids=lambda path: f"{path.parents[1].name}/{path.name}")
def test_the_edit_mends_what_was_injected(module):
    source = module.read_text()
    sites = list(usable_sites(source, all_swaps()))
    assert sites
    for site in sites:
        buggy = shown_lines(site.mutate(source).split("\n"), site.first_line)
        edit = SwapEdit.at(site.swap.reversed(), buggy[site.line - site.first_line])
        assert edit.apply(buggy) == shown_lines(source.split("\n"), site.first_line)
        assert edit in possible_edits(buggy)


def test_the_commands_do_what_the_edit_says(tmp_path):
    """Every family once, with the real sed."""
    seen = set()
    for module in MODULES:
        source = module.read_text()
        for site in usable_sites(source, all_swaps()):
            if (site.swap.family, site.swap.right) in seen:
                continue
            seen.add((site.swap.family, site.swap.right))
            (tmp_path / "m.py").write_text(site.mutate(source))
            lines = site.mutate(source).split("\n")
            shown = subprocess.run(
                look_command(site.function, "m.py"),
                shell=True,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            expected = "\n".join(shown_lines(lines, site.first_line))
            assert shown.rstrip("\n") == expected.rstrip("\n") and shown.endswith("\n")
            command = SwapEdit.at(site.swap.reversed(), lines[site.line - 1]).command(site.function, "m.py")
            subprocess.run(command, shell=True, cwd=tmp_path, check=True)
            assert (tmp_path / "m.py").read_text() == source, (site, command)
    assert len({family for family, _ in seen}) >= 16


def test_hints_are_identifiers_of_the_line():
    assert hint_words('    if count < self.limit and name == "limit x":') == ["count", "limit", "name"]
