"""`job=eval` on an endpoint that speaks only Chat Completions: predictions, budget, and a key that is nowhere."""

import asyncio
import json

import pytest

from swe_rl.config.schema import EnvConfig
from swe_rl.env.bugs.env import BugsEnv
from tests.end_to_end.conftest import root_list
from tests.support.fake_chat_server import FakeChatServer, FakeReply

KEY = "sk-secret-0123456789"


def fix_of(instance):
    return f"I fix it.\n```bash\ngit apply <<'PATCH'\n{instance.patch}PATCH\n```"


def words_for(server, *more):
    return (
        "job=eval", "engine=endpoint", f"engine.url={server.base_url}", "engine.model=theirs",
        "engine.key=${oc.env:THEIR_KEY}", "rollout.eval_n=1", "rollout.max_trajectory_tokens=2000", *more,
    )  # fmt: skip


@pytest.mark.slow
async def test_an_endpoint_that_hangs_is_no_failure_of_the_agents(command, monkeypatch):
    """One call may take longer than the agent has time, and longer than an attempt waits for."""
    monkeypatch.setenv("THEIR_KEY", KEY)
    root_list(command.root, held_out=1)
    calls = []

    def script(messages):
        calls.append(messages)
        # The greeting is answered.
        return FakeReply("yes", delay_s=0.0 if len(calls) == 1 else 600.0)

    async with FakeChatServer(script) as server:
        limits = ("rollout.agent_timeout_s=1", "engine.call_timeout_s=60", "rollout.max_wait_s=4")
        done = await asyncio.to_thread(command.run, *words_for(server, *limits))
    assert done.exit_status == 1, done.text
    scores = json.loads((command.folder("eval") / "eval.json").read_text())
    assert list(scores["all"]["statuses"]) == ["engine_error"]
    assert not scores["all"]["resolved"]
    assert scores["endpoint"]["lost_calls"] == len(server.requests) - 1 > 0


@pytest.mark.slow
async def test_a_key_that_an_endpoint_repeats_is_in_no_file_and_no_output(command, tmp_path, monkeypatch):
    """Its errors and its replies have the key. Both are in files of the run: with stars in place of it."""
    monkeypatch.setenv("THEIR_KEY", f"{KEY}\n")
    instance = BugsEnv(EnvConfig(), tmp_path / "workspaces").instances("heldout")[0]
    root_list(command.root, held_out=1)

    def script(messages):
        if len(server.requests) == 2:
            return FakeReply("no such thing", status=400)
        return "It is fixed.\n```bash\nsubmit\n```" if len(messages) > 2 else fix_of(instance)

    async with FakeChatServer(script, repeats_key=True) as server:
        done = await asyncio.to_thread(command.run, *words_for(server))
    written = {path: path.read_bytes() for path in command.root.rglob("*") if path.is_file()}
    assert [path for path, content in written.items() if KEY.encode() in content] == []
    assert KEY not in done.text
    assert sum(b"The key was: Bearer ***" in content for content in written.values()) > 1, "what was said is kept"


@pytest.mark.slow
async def test_an_evaluation_ends_with_its_budget_and_goes_on_with_a_larger_one(command, tmp_path, monkeypatch):
    monkeypatch.setenv("THEIR_KEY", KEY)
    instances = BugsEnv(EnvConfig(), tmp_path / "workspaces").instances("heldout")[:2]
    root_list(command.root)

    def script(messages):
        if len(messages) > 2:
            return "It is fixed.\n```bash\nsubmit\n```"
        fixes = [fix_of(one) for one in instances if one.problem_statement in messages[-1]["content"]]
        return fixes[0] if fixes else "yes"

    async with FakeChatServer(script) as server:
        words = ("job=eval", "rollout.eval_n=2", "rollout.concurrency=1", "rollout.max_trajectory_tokens=2000")
        words += ("engine=endpoint", f"engine.url={server.base_url}", "engine.model=theirs", "trainer.resume=auto")
        words += ("engine.key=${oc.env:THEIR_KEY}", "engine.price_out=1000000")
        # A word of the fake costs 1. The greeting and the first call leave 1: enough for the attempt's second call.
        budget = 2 + len(fix_of(instances[0]).split())
        first = await asyncio.to_thread(command.run, *words, f"engine.budget={budget}")
        folder = command.folder("eval")
        ended = json.loads((folder / "eval.json").read_text())
        assert first.exit_status == 1, first.text
        said = " ".join(first.text.split())
        assert f"engine.budget={budget} is spent" in said and "1 of 4 attempts were evaluated" in said
        assert (ended["all"]["attempts"], ended["all"]["resolved"]["rate"]) == (1, 1.0), "what is missing is no 0"
        assert len(server.requests) == 3
        second = await asyncio.to_thread(command.run, *words, "engine.budget=1000")
    assert second.exit_status == 0, second.text
    assert command.folder("eval") == folder
    scores = json.loads((folder / "eval.json").read_text())
    assert (scores["evaluated"], scores["all"]["attempts"], scores["all"]["resolved"]["rate"]) == ("theirs", 4, 1.0)
    assert scores["endpoint"]["calls"] == len(server.requests) == 2 + 4 * 2
    assert scores["endpoint"]["cost"] == scores["endpoint"]["sampled_tokens"], "a token costs 1"
    predictions = json.loads((folder / "preds.json").read_text())
    assert predictions.keys() == {one.instance_id for one in instances}
    assert all(KEY.encode() not in path.read_bytes() for path in command.root.rglob("*") if path.is_file())
    assert KEY not in first.text + second.text
