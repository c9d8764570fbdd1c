"""`job=serve` as a user runs it: an OpenAI client gets answers, Ctrl-C leaves nothing."""

import json
import signal
import socket
import urllib.error
import urllib.request

import pytest

pytest.importorskip("openai")

from openai import OpenAI

from swe_rl.config.schema import Config
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.logger.jsonl import read_events

pytestmark = pytest.mark.slow


def welcomed(process):
    """What was said up to the line that names the way to stop it."""
    said = {}
    for line in process.stdout:
        name, _, value = line.rstrip("\n").partition(" ")
        said[name] = value.strip()
        if name == "stop":
            return said
    raise AssertionError(process.communicate())


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def interrupted(process):
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in stderr and "interrupted" in stderr, stderr
    return stdout


def test_a_client_is_answered_until_ctrl_c(command):
    process = command.start("job=serve", "engine.max_num_seqs=4", "layout.engines=2", cold=True)
    stdout = ""
    try:
        said = welcomed(process)
        with OpenAI(base_url=said["base"].split()[-1], api_key="any") as client:
            assert [one.id for one in client.models.list()] == ["tiny"] == [said["model"]]
            messages = [{"role": "user", "content": "Fix the bug."}]
            extra = {"program_id": "mine"}
            one = client.chat.completions.create(model="tiny", messages=messages, max_tokens=20, extra_body=extra)
            told = {"role": "assistant", "content": one.choices[0].message.content}
            messages += [told, {"role": "user", "content": "Go on."}]
            stream = client.chat.completions.create(
                model="tiny", messages=messages, max_tokens=20, extra_body=extra, stream=True
            )
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        while "2/2 engines" not in stdout:  # a line of its state comes every ten seconds where there is no terminal
            line = process.stdout.readline()
            assert line, process.communicate()
            stdout += line
    finally:
        stdout += interrupted(process)
    assert "sampled tokens/s" in stdout and "KV " in stdout
    folder = command.folder("serve")
    status = json.loads((folder / "status.json").read_text())
    assert (status["status"], status["exit_status"]) == ("interrupted", 130)
    store = TraceStore(folder / "traces.db")
    traces = store.traces("mine")
    store.close()
    assert len(traces) == 2 and traces[1].prompt_tokens > traces[0].prompt_tokens
    [event] = read_events(folder / "events.jsonl", "serving")
    assert event["model"] == Config().model.name and not event["key"]
    assert not command.children()
    assert not list((command.root / "scratch").glob("swe_rl-*/*"))


def test_beyond_loopback_a_key_is_needed_and_written_nowhere(command):
    port = free_port()
    process = command.start("job=serve", "gateway.host=0.0.0.0", f"gateway.port={port}")
    try:
        said = welcomed(process)
        key = said["API"].split()[-1]
        url = f"http://127.0.0.1:{port}/v1"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url}/models", timeout=10)
        assert f"Bearer {key}" in said["try"]
        with OpenAI(base_url=url, api_key=key) as client:
            assert [one.id for one in client.models.list()] == ["tiny"]
    finally:
        interrupted(process)
    assert not [path for path in command.root.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]


def test_what_it_serves_is_an_engine_of_another_run(command):
    process = command.start("job=serve", "engine.max_num_seqs=4")
    try:
        url = welcomed(process)["base"].split()[-1]
        short = ("rollout.eval_n=1", "rollout.max_turns=2", "rollout.concurrency=4", "sandbox.concurrency=4")
        given = ("engine=external", f"engine.urls=[{url}]", "env.eval_split=heldout", *short)
        looked = command.run("job=check", "job.of=eval", "job.preflight=true", *given)
        assert looked.exit_status == 0, looked.text
        done = command.run("job=eval", *given)
        assert done.exit_status == 0, done.text
    finally:
        interrupted(process)
    statuses = {json.loads(line)["status"] for line in evaluated(command.folder("eval"))}
    assert not statuses & {"engine_error", "infra_error", "grade_error"}
    here, there = (TraceStore(command.folder(name) / "traces.db") for name in ("eval", "serve"))
    sampled = {trace.sampled_ids.tobytes(): trace for name in here.sessions() for trace in here.traces(name)}
    for name in there.sessions():
        for trace in there.traces(name):
            if trace.sampled_ids.tobytes() in sampled:
                assert sampled[trace.sampled_ids.tobytes()].logprobs == pytest.approx(trace.logprobs, abs=1e-6)
    served = {trace.sampled_ids.tobytes() for name in there.sessions() for trace in there.traces(name)}
    here.close()
    there.close()
    assert sampled and sampled.keys() <= served


def evaluated(folder):
    return (folder / "trajectories" / "eval_000000.jsonl").read_text().splitlines()


def test_a_port_that_is_taken_is_one_sentence(command):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = command.run("job=serve", f"gateway.port={taken.getsockname()[1]}")
    assert done.exit_status == 2 and "the port is in use" in done.stderr and "Traceback" not in done.stderr
    assert not command.children()
