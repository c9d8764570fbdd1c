"""The instances that ship: enough of them, of every family, proven, and nothing of one split in the other."""

import random
import re
from collections import Counter

import pytest

from swe_rl.config.schema import EnvConfig, SandboxConfig
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.bugs.generate import list_candidates
from swe_rl.env.bugs.mutation import PAIRS, Swap, all_swaps, matches_line, split_swaps
from swe_rl.sandbox.process.provider import ProcessProvider

SPLITS = {"train": 48, "heldout": 24}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    env = BugsEnv(EnvConfig(), tmp_path_factory.mktemp("cache"))
    return {split: env.instances(split) for split in SPLITS}


def changed(patch: str) -> tuple[str, str]:
    """The one line that the gold patch takes out, and the one that it puts in."""
    lines = [line for line in patch.splitlines() if not line.startswith(("---", "+++"))]
    [buggy] = [line[1:] for line in lines if line.startswith("-")]
    [fixed] = [line[1:] for line in lines if line.startswith("+")]
    return buggy, fixed


def variant(patch: str) -> Swap:
    buggy, fixed = changed(patch)
    [swap] = [
        one for one in all_swaps() if matches_line(one, fixed) and fixed.replace(one.right, one.wrong, 1) == buggy
    ]
    return swap


@pytest.mark.parametrize("split", SPLITS)
def test_enough_instances_each_with_tests_of_both_kinds(data, split):
    assert len(data[split]) >= SPLITS[split]
    assert len({one.instance_id for one in data[split]}) == len(data[split])
    for one in data[split]:
        assert one.fail_to_pass and one.pass_to_pass and not set(one.fail_to_pass) & set(one.pass_to_pass)
        assert all(test.split("::")[1] in one.test_patch for test in one.fail_to_pass)


@pytest.mark.parametrize("split", SPLITS)
def test_every_family_that_the_packages_allow(data, split):
    there = {variant(one.patch).family for one in data[split]}
    possible = {one.site.swap.family for one in list_candidates(split)}
    assert possible == set(PAIRS)
    assert len(there) >= len(possible) - 2, sorted(possible - there)
    counts = Counter(variant(one.patch).family for one in data[split])
    assert max(counts.values()) <= len(data[split]) / 4


def test_no_package_and_no_variant_in_both_splits(data):
    repos = {split: {one.repo for one in data[split]} for split in SPLITS}
    names = {split: {repo.split("/")[-1] for repo in repos[split]} for split in SPLITS}
    variants = {split: {variant(one.patch) for one in data[split]} for split in SPLITS}
    assert not names["train"] & names["heldout"] and not variants["train"] & variants["heldout"]
    for split in SPLITS:
        assert variants[split] <= set(split_swaps(split)) and len(repos[split]) >= 6
        assert all(repo.startswith(f"bugs/{split}/") for repo in repos[split])


@pytest.mark.parametrize("split", SPLITS)
def test_a_statement_names_function_and_file_but_never_the_fix(data, split):
    for one in data[split]:
        buggy, fixed = changed(one.patch)
        swap = variant(one.patch)
        path = one.patch.split()[2].removeprefix("a/")
        assert path in one.problem_statement
        assert fixed.strip() not in one.problem_statement and buggy.strip() not in one.problem_statement
        assert not re.search(r"\btest_\w+", one.problem_statement)
        assert not re.search(r"[<>=!+*%/\[\]()]{1,2}", one.problem_statement.replace(path, "")), swap


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
async def test_instances_are_proven_again_in_the_sandbox(data, split, tmp_path):
    env = BugsEnv(EnvConfig(), tmp_path / "cache")
    sandboxes = ProcessProvider(SandboxConfig(), tmp_path / "scratch", warn=print)
    try:
        for one in random.Random().sample(list(data[split]), 3):
            gold = await env.grade(one, one.patch, sandboxes, 60.0)
            noop = await env.grade(one, "", sandboxes, 60.0)
            assert gold.resolved and gold.patch_applied, one.instance_id
            assert gold.session.twinned and not gold.session.passed_twins, one.instance_id
            assert not any(noop.fail_to_pass.values()) and all(noop.pass_to_pass.values()), one.instance_id
    finally:
        await sandboxes.close()
