"""What the rules of vLLM's own arguments say of vLLM, held against the installed one. Skipped where there is none.

On a machine with a GPU, its kernels are held to them: `pytest -m vllm tests/engine/test_engine_vllm_facts.py`.
"""

import ast
import itertools
import json
import math
import os
import subprocess
from pathlib import Path

import pytest
import torch

from swe_rl.check.rules.engine import EXACT_ACCEPTANCE, QUANTISED_ON_ARRIVAL, READ_AGAIN, READ_ONCE
from swe_rl.check.rules.routers import COPIED_BY_HAND
from swe_rl.engine.transfer.staged_layers import COPIES
from swe_rl.engine.vllm.arguments import NoVllmError, vllm_command

try:
    COMMAND = vllm_command(os.environ)
except NoVllmError:
    COMMAND = ()

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not COMMAND, reason="no vLLM here; SWE_RL_VLLM_COMMAND can name one"),
]
SCRIPT = Path(__file__).with_name("vllm_facts.py")


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "TORCH_COMPILE_DISABLE": "1"}
    done = subprocess.run(
        [COMMAND[0], str(SCRIPT)],
        env=environment,
        cwd=tmp_path_factory.mktemp("facts"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def cpu_facts(facts):
    if facts["device"] != "cpu":
        pytest.skip("of vLLM's CPU build")
    return facts


@pytest.fixture(scope="module")
def exact(facts):
    """The probability of each reply, and the log-probabilities of its tokens: as many drafts as are sampled, and one
    token more."""
    logits = torch.tensor(facts["logits"])
    kept = logits.masked_fill(logits < logits.topk(facts["kept"]).values[:, -1:], -math.inf)
    table = (kept / facts["temperature"]).log_softmax(-1)
    replies = {}
    for ids in itertools.product(range(logits.shape[1]), repeat=len(logits)):
        refused = [at for at, draft in enumerate(facts["drafts"]) if ids[at] != draft]
        reply = ids[: min(refused) + 1] if refused else ids
        logprobs = [float(table[at, token]) for at, token in enumerate(reply)]
        replies[",".join(map(str, reply))] = (math.exp(sum(logprobs)), logprobs)
    return {reply: told for reply, told in replies.items() if told[0] > 0}


def chi_square(found, exact):
    """Over the replies that can be sampled; infinite where another one was."""
    if found.keys() - exact.keys():
        return math.inf
    count = sum(one["count"] for one in found.values())
    counts = {reply: found.get(reply, {"count": 0})["count"] for reply in exact}
    return sum((counts[reply] - count * share) ** 2 / (count * share) for reply, (share, _) in exact.items())


def test_methods_that_quantise_what_arrives_are_vllms(facts):
    assert set(facts["on_arrival"]) <= QUANTISED_ON_ARRIVAL
    assert QUANTISED_ON_ARRIVAL - set(facts["on_arrival"]) <= set(facts["methods"])


def test_loaders_that_can_load_again_are_vllms(facts):
    again = {name for name, loads_again in facts["loaders"].items() if loads_again}
    assert READ_AGAIN <= again <= READ_AGAIN | {"runai_streamer", "mistral", "npcache", "pt"}
    assert facts["loaders"].keys() - again - {"runai_streamer"} <= READ_ONCE


def test_acceptance_methods_are_vllms(facts):
    assert set(facts["acceptance"]) == EXACT_ACCEPTANCE | {"synthetic"}


def test_the_cpu_build_loses_what_each_drafted_token_needs(cpu_facts):
    """The reason of `cpu_drafts`. Once this and the next test fail, the rule can ask for vLLM's version."""
    assert cpu_facts["temperatures"] != [0.5, 2.0, 2.0] and cpu_facts["top_k"] != [7, 9, 9]


def test_the_cpu_build_fails_at_top_k_where_nothing_was_drafted(cpu_facts):
    assert "numel() == 0" in cpu_facts["without_drafts"]


def test_the_cpu_build_does_not_report_experts(cpu_facts):
    """The reason of `routing_replay`. Once this fails, a mixture can be replayed by a real server in this lane."""
    assert "requires Model Runner V2" in cpu_facts["without_routes"]


def test_exact_acceptance_samples_what_the_model_alone_would(facts, exact):
    """Ten replies, nine degrees of freedom: above 33.7 in one of 10,000 tries."""
    assert len(exact) == 10 and math.isclose(sum(share for share, _ in exact.values()), 1.0, rel_tol=1e-5)
    assert chi_square(facts["exact"], exact) < 33.7
    assert facts["exact"]["1,3,2"]["count"] > 500  # both drafts accepted


def test_log_probabilities_of_drafted_tokens_are_those_they_were_sampled_with(facts, exact):
    for reply, (_, logprobs) in exact.items():
        for side in ("low", "high"):
            assert facts["exact"][reply][side] == pytest.approx(logprobs, abs=1e-5), reply


def test_acceptance_at_a_given_rate_is_another_distribution_with_the_same_log_probabilities(facts, exact):
    """The reason of `inexact_drafts`."""
    assert chi_square(facts["all_accepted"], exact) > 1000
    for reply, told in facts["all_accepted"].items():
        assert told["low"] == pytest.approx(exact[reply][1], abs=1e-5)


def test_models_whose_loaders_copy_past_the_reload_are_those_of_the_rule():
    """The rule refuses ways on which their weights would stay old: `copied_experts`."""
    find = "import importlib.util; print(importlib.util.find_spec('vllm').submodule_search_locations[0])"
    folder = subprocess.run([COMMAND[0], "-c", find], capture_output=True, text=True, check=True).stdout.strip()
    copying = set()
    for file in Path(folder, "model_executor", "models").glob("*.py"):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            is_loader = isinstance(node, ast.FunctionDef) and "load_weights" in node.name
            if is_loader and COPIES.search(ast.get_source_segment(text, node)):
                copying.add(file.stem)
    assert copying == set(COPIED_BY_HAND)
