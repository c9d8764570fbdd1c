"""The first way out that a finding names can be typed, ends the finding, and leads into no other error.

What is followed by words alone ("a larger disk") or has a placeholder (FOLDER) is for the reader to fill in.
"""

import re
import shlex

import pytest

from swe_rl.check.check import check_config
from swe_rl.check.findings import Severity
from swe_rl.config.folders import list_options
from tests.config.test_config_rules import CASES, config_of, findings_of, host_of

pytestmark = pytest.mark.slow

GROUPS = set(list_options())
# Each of these asks for something that only the user has: an address, a folder, a package, an image, a program.
ASKS = {"engine_urls", "endpoint", "model_path", "sandbox_mounts", "sandbox_image", "verifiers_package", "compiler"}
# A second thing was wrong beside the first, and is said next.
NEXT = {
    "range/count": {"group_size"},  # the least number that a count may be is no group
    "sequence_parallel": {"mini_batch_ranks"},  # six GPUs in threes divide no batch of eight prompts
    "replica_node": {"colocated_memory"},  # replicas take memory, which the way out names as its condition
    "engine_command": {"engine_kind"},  # without the command, vLLM needs a GPU
    "model_sizes/option": {"engine_model"},  # the model is larger than what this machine has
}
# The environment's option sets this key, and the second finding asks for another environment.
TOGETHER = {"own_sandbox/images"}
_KEY = re.compile(r"[a-z_]+(?:\.\w+)+")
_WORD = re.compile(r"\+{0,2}[a-z_]+(?:\.[\w.]+)?=\S+")
_PLACEHOLDER = re.compile(r"\b[A-Z][A-Z_]{2,}\b|\.\.\.")


def first_way(fix):
    """The words of the first way out, or none where it is not to be typed as it is."""
    way = re.split(r",? or (?!more)|; |, ", fix)[0].partition(" (")[0]
    if found := re.fullmatch(r"leave (.+) out", way):
        keys = found[1].split(" and ")
        return [f"~{key}" for key in keys if all(map(_KEY.fullmatch, keys))]
    try:
        words = shlex.split(way)
    except ValueError:
        return []
    if _PLACEHOLDER.search(way) or not all(_WORD.fullmatch(word) for word in words):
        return []
    return words


def follow(given, words):
    """The command line with a way out in the place of what it changes. A group that is chosen anew loses its keys."""
    keys = {word.lstrip("+~").partition("=")[0] for word in words}
    kept = []
    for override in given:
        key = override.lstrip("+~").partition("=")[0]
        if key not in keys and key.partition(".")[0] not in keys & GROUPS:
            kept.append(override)
    return [*kept, *(word for word in words if not word.startswith("~"))]


ALONE = sorted(CASES.keys() - TOGETHER)


def test_most_ways_out_can_be_typed():
    typed = [name for name in ALONE if any(first_way(finding.fix) for finding in findings_of(name))]
    assert len(typed) > 250
    assert first_way("algo=gspo, which clips at 3e-4") == ["algo=gspo"]
    assert first_way("leave rollout.top_p out") == ["~rollout.top_p"]
    assert first_way("a larger disk, or trainer.lora_rank=32") == first_way("env.instances=FILE") == []


@pytest.mark.parametrize("name", ALONE)
def test_the_first_way_out_passes_the_check(name):
    case = CASES[name]
    host = host_of(case)
    findings = findings_of(name)
    words = []
    for finding in findings:
        words += [word for word in first_way(finding.fix) if word not in words]
    if not words:
        pytest.skip("its way out is not typed")
    before = {one.rule_id for one in check_config(config_of(*case["refused"]), host=host)}
    after = check_config(config_of(*follow(case["refused"], words)), host=host)
    said = {(one.rule_id, one.key, one.message) for one in after}
    followed = [one for one in findings if first_way(one.fix)]
    assert [one.key for one in followed if (one.rule_id, one.key, one.message) in said] == []
    errors = {one.rule_id for one in after if one.severity is Severity.error}
    assert errors - before - ASKS - NEXT.get(name, set()) == set(), words
