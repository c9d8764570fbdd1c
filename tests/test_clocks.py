"""Durations and time limits are of monotonic clocks: the wall clock says when something was, and that only here."""

import re
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "swe_rl"
WALL_CLOCK = re.compile(r"\btime\.time\b|\bdatetime\.(?:now|utcnow|today)\b|\bfrom time import\b.*\btime\b")
ALLOWED = {
    "agent/nemo_gym/response.py": "when a response was made, for its server",
    "agent/mini_swe/parts.py": "when a message was made",
    "env/proof/prove.py": "when a proof was made, for people",
    "env/strength/measure.py": "when a strength was measured, for people",
    "job/mine.py": "the day up to which a release without a date gets packages",
    "engine/server/client.py": "until when a server asks to be left alone, where it names a date",
    "engine/endpoint/spending.py": "when a call was answered, for people",
    "gateway/forwarding/completer.py": "when a reply was made, for its client",
    "gateway/completion.py": "when a reply was made, for its client",
    "gateway/chains/sampled_reply.py": "when a trace was made",
    "hardware/rendezvous.py": "when a record was written, for people",
    "hardware/slurm/requeue.py": "when a job was queued again, over several starts",
    "templates/own/sandbox.py": "the date that a checkpoint's own template writes into a system message",
    "submission/find.py": "the age of another process's heartbeat",
    "submission/submit.py": "the age of another process's heartbeat",
    "logger/jsonl.py": "when an event was",
    "logger/mllog.py": "when an event of a benchmark was, as its format wants",
    "logger/mlflow.py": "when a point of a curve was sent",
    "logger/tensorboard.py": "when a point of a curve was written",
    "logger/otel.py": "when this start of a run began: spans before it were sent by an earlier one",
    "logger/folder.py": "when a run lived last, for other processes",
    "rollout/attempt.py": "when a trajectory began",
    "sandbox/container/files.py": "the time of a file",
    "sandbox/container/engine.py": "until when another run may be starting a container",
    "sandbox/container/provider.py": "until when another run may be starting a container",
}


def test_the_wall_clock_measures_nothing():
    found = {
        str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if WALL_CLOCK.search(path.read_text("utf-8"))
    }
    assert found == set(ALLOWED)
