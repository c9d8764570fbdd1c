"""`job=eval` on an endpoint that speaks only Chat Completions: predictions, budget, and a key that is nowhere."""

import asyncio
import json

import pytest

from swe_rl.config.schema import EnvConfig
from swe_rl.env.bugs.env import BugsEnv
from tests.end_to_end.conftest import root_list
from tests.support.fake_chat_server import FakeChatServer

KEY = "sk-secret-0123456789"


def fix_of(instance):
    return f"I fix it.\n```bash\ngit apply <<'PATCH'\n{instance.patch}PATCH\n```"


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
