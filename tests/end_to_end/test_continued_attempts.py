"""A run that is killed while its attempts are under way samples nothing twice that was recorded."""

import json
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from swe_rl.gateway.store.schema import SELECT, from_rows
from swe_rl.logger.jsonl import read_events, read_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
OPTIONS = ("job=rollout", "trainer.steps=1", "rollout.n=8", "rollout.prompts_per_step=4")
# The words of this agent alone are longer than the usual context.
ROOM = {
    "mini_swe": ("agent.system_prompt=short", "rollout.max_trajectory_tokens=2000", "rollout.max_prompt_tokens=1200")
}
ENOUGH = 12  # Turns are recorded, of several attempts.


def turns(folder: Path) -> dict[tuple[str, int], tuple[str, float]]:
    """What was sampled in each recorded turn, and how long the engine took for it."""
    connection = sqlite3.connect(f"file:{folder / 'traces.db'}?mode=ro", uri=True, timeout=10)
    try:
        names = [name for (name,) in connection.execute("SELECT DISTINCT session_id FROM traces").fetchall()]
        traces = [trace for name in names for trace in from_rows(connection.execute(SELECT, (name,)).fetchall())]
    except sqlite3.Error:
        return {}
    finally:
        connection.close()
    sampled = {}
    for trace in traces:
        fields = trace.delta_ids, trace.sampled_ids, trace.logprobs, trace.weight_versions
        said = json.dumps([field.tolist() for field in fields])
        sampled[trace.session_id, trace.turn] = (said, trace.decode_s)
    return sampled


@pytest.mark.parametrize("agent", ["bash", "mini_swe", "pdb"])
def test_a_killed_run_goes_on_at_its_last_turns(command, agent: str):
    options = (*OPTIONS, f"agent={agent}", *ROOM.get(agent, ()), "name=killed")
    started = command.start(*options)
    limit_s = time.monotonic() + 120
    recorded = {}
    while len(recorded) < ENOUGH and time.monotonic() < limit_s:
        found = list(command.outputs.glob("*/*/traces.db"))
        recorded = turns(found[0].parent) if found else {}
        assert started.poll() is None
        time.sleep(0.05)
    started.send_signal(signal.SIGKILL)
    started.wait()
    folder = command.folder("killed")
    before = turns(folder)
    assert len(before) >= ENOUGH
    resumed = command.run(*options, "trainer.resume=auto")
    assert resumed.exit_status == 0, resumed.text
    after = turns(folder)
    # The engine's time is that of the first process, too: nothing of it was sampled again.
    assert {key: after[key] for key in before} == before
    [kept] = read_events(folder / "events.jsonl", "attempts_kept")
    assert kept["attempts"] == len({name for name, _ in before})
    assert not (folder / "under_way").exists()
    whole = command.run(*options[:-1], "name=whole")
    assert whole.exit_status == 0, whole.text
    uninterrupted = turns(command.folder("whole"))
    assert {key: said for key, (said, _) in uninterrupted.items()} == {key: said for key, (said, _) in after.items()}
    # The step's tokens are not those of the time that this start spent on them.
    [step], [whole_step] = (read_jsonl(command.folder(name) / "steps.jsonl") for name in ("killed", "whole"))
    assert step["tokens_per_s"] is None and step["sampled_tokens_per_s"] is None
    assert whole_step["tokens_per_s"] > 0 and step["avg_response_length"] == whole_step["avg_response_length"]
