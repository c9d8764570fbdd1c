"""Whole jobs over servers of the fake program: started by the run, or by somebody else."""

import asyncio
import contextlib
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import psutil
import pytest

from swe_rl.config.compose import compose
from swe_rl.engine.server.monitor import parse_metrics
from swe_rl.facts.server_arguments import VLLM_COMMAND
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.host.addresses import free_port
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.jsonl import read_events
from swe_rl.report.trace import RUN, trace_events
from swe_rl.run.components import load_sampled
from tests.end_to_end.conftest import PER_STEP, PROMPTS
from tests.support.fake_vllm.server import FakeSettings, FakeVllm

pytestmark = pytest.mark.slow

VOCAB = 1536
TWO = ("engine=vllm", "layout.engines=2")
PAIRS = "rollout.n=2"  # what a lost engine costs does not depend on the size of a group
OF_PAIRS = 2 * PROMPTS  # trajectories of a step
INVENTED = "trainer.check_weights=false"  # the fake server invents its log-probabilities
FAILED = {"infra_error", "grade_error", "engine_error"}


@pytest.fixture
def fake(monkeypatch):
    """fake(**settings): from now on a server is the fake one."""

    def use(**settings):
        monkeypatch.setenv(VLLM_COMMAND, f"{shlex.quote(sys.executable)} -m tests.support.fake_vllm.server")
        monkeypatch.setenv("FAKE_VLLM", json.dumps({"vocab_size": VOCAB, **settings}))

    return use


def wait_for(process, condition, seconds=60.0):
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.05)


def wait_for_line(command, process, name, line):
    logs = command.outputs / name
    wait_for(process, lambda: any(line in path.read_text() for path in logs.glob("*/run.log")))


def wait_for_port(port, seconds=60.0):
    until = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert time.monotonic() < until
        time.sleep(0.05)


def wait_for_requests(process, port):
    """Until the server has a request under way."""

    def asked():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            found = parse_metrics(answer.read().decode())
        return found is not None and found.running > 0

    wait_for(process, asked)


def port_of(server):
    return int(server.cmdline()[server.cmdline().index("--port") + 1])


def traces_of(folder):
    store = TraceStore(folder / "traces.db")
    try:
        return [one for session in store.sessions() for one in store.traces(session)]
    finally:
        store.close()


def ended(process):
    stdout, stderr = process.communicate(timeout=240)
    return process.returncode, stdout + stderr


def test_servers_hold_the_model_themselves():
    external = ["engine=external", "engine.urls=[http://a:1]", "job=rollout"]
    model, tokenizer = load_sampled(compose(external).config)
    assert model is None and tokenizer.pad_token_id is not None
    assert load_sampled(compose(["job=rollout"]).config)[0] is not None


def test_a_rollout_over_servers_of_its_own(command, fake):
    fake()
    done = command.run("job=rollout", *TWO, "trainer.steps=2", "router=cap")
    assert done.exit_status == 0, done.text
    folder = command.folder("rollout")
    assert [step["num_trajectories"] for step in command.steps("rollout")] == [PER_STEP, PER_STEP]
    assert {one.engine for one in traces_of(folder)} == {"engine0", "engine1"}
    assert sorted(path.name for path in (folder / "engines").iterdir()) == ["engine0.log", "engine1.log"]
    for line in ("Finished: 'start_engines'", "engine0 is up after", "engine1 is up after"):
        assert line in command.log("rollout")
    assert not command.children()
    assert not list((command.root / "scratch").glob("swe_rl-*/*"))


def test_a_killed_engine_costs_no_trajectory(command, fake):
    fake(token_delay_s=0.02)
    process = command.start("job=rollout", *TWO, PAIRS, "trainer.steps=2")
    wait_for_line(command, process, "rollout", "Started: 'generate'")
    victim = command.servers(process)[0]
    wait_for_requests(process, port_of(victim))  # whose turns take about two seconds
    victim.kill()
    status, text = ended(process)
    assert status == 0, text
    steps = command.steps("rollout")
    assert [step["num_trajectories"] for step in steps] == [OF_PAIRS, OF_PAIRS]
    for step in steps:
        assert not FAILED & set(step["statuses"]) and step["infra_retries"] == 0
    folder = command.folder("rollout")
    traces = traces_of(folder)
    assert {one.engine for one in traces} == {"engine0", "engine1"}
    assert len({one.session_id for one in traces}) == 2 * OF_PAIRS
    assert "SIGKILL from outside" in command.log("rollout") and "restart 1 of 3" in command.log("rollout")
    [lost], [back] = (read_events(folder / "events.jsonl", name) for name in ("engine_lost", "engine_back"))
    assert lost["engine"] == back["engine"] and 0 < back["away_s"] < 60
    assert lost["requests"] > 0 and 0 < lost["work_s"] < 60 * lost["requests"]
    for said in (f"{lost['requests']} request", "of work lost", "serves again; it was away for"):
        assert said in text  # on the terminal
    page = (folder / "report.html").read_text()
    assert '"label":"Engines lost","value":"1"' in page
    drawn = list(trace_events(RunFolder(folder)))
    assert f"{lost['engine']} away" in {event["name"] for event in drawn if event["ph"] == "X" and event["pid"] == RUN}
    assert {event["name"] for event in drawn if event["ph"] == "C"} == {"engine0", "engine1"}
    print(f"{back['engine']} was away for {back['away_s']:.1f} s; steps of {[step['generate_s'] for step in steps]} s")
    assert not command.children()


def test_a_killed_engine_of_somebody_else_costs_no_trajectory(command, fake):
    """Nobody starts it again here; the other one does all the work from then on."""
    fake(token_delay_s=0.02)
    ports = [free_port() for _ in range(2)]
    program = [sys.executable, "-m", "tests.support.fake_vllm.server", "--model", "theirs"]
    theirs = [subprocess.Popen([*program, "--port", str(port)], stdout=subprocess.DEVNULL) for port in ports]
    try:
        for port in ports:
            wait_for_port(port)
        urls = ",".join(f"http://127.0.0.1:{port}/v1" for port in ports)
        process = command.start("job=rollout", "engine=external", f"engine.urls=[{urls}]", PAIRS, "trainer.steps=1")
        wait_for_line(command, process, "rollout", "Started: 'generate'")
        wait_for_requests(process, ports[0])
        theirs[0].kill()
        status, text = ended(process)
    finally:
        for server in theirs:
            server.kill()
            server.wait()
    assert status == 0, text
    [step] = command.steps("rollout")
    assert step["num_trajectories"] == OF_PAIRS and not FAILED & set(step["statuses"]) and step["infra_retries"] == 0
    [lost] = read_events(command.folder("rollout") / "events.jsonl", "engine_lost")
    assert lost["engine"] == "engine0" and lost["requests"] > 0
    assert "its work goes to the others until it is back" in text


@pytest.mark.long  # the lane `slow` has it for engines of our own
def test_the_last_engine_of_somebody_else_is_gone_for_good(command, fake):
    """Waiting for it is nobody's own time, and ends: by name, with what the trainer holds."""
    fake(token_delay_s=0.02, sleep_mode=True)
    port = free_port()
    program = [sys.executable, "-m", "tests.support.fake_vllm.server", "--model", "theirs", "--port", str(port)]
    server = subprocess.Popen(program, stdout=subprocess.DEVNULL)
    try:
        wait_for_port(port)
        process = command.start(
            "job=rollout", "engine=external", f"engine.urls=[http://127.0.0.1:{port}/v1]", "engine.max_away_s=6",
            PAIRS, "rollout.agent_timeout_s=5", "rollout.command_timeout_s=5",
        )  # fmt: skip
        wait_for_line(command, process, "rollout", "Started: 'generate'")
        wait_for_requests(process, port)
    finally:
        server.kill()
        server.wait()
    killed_s = time.monotonic()
    status, text = ended(process)
    assert status == 1 and "Traceback" not in text, text
    assert 6 <= time.monotonic() - killed_s < 60, text  # not at once, and not a rollout.agent_timeout_s
    assert "no engine serves: work waits for one to come back, 6 s at most" in text
    told = json.loads((command.folder("rollout") / "status.json").read_text())
    assert (told["status"], told["exit_status"]) == ("failed", 1)
    assert "NoEngineError: No engine has served for 6 s (engine.max_away_s)" in told["reason"]
    assert str(port) in told["reason"] and "cannot be reached" in told["reason"]
    assert not (command.folder("rollout") / "steps.jsonl").exists() or not command.steps("rollout")
    assert not command.children()


def test_training_over_servers_and_the_weights_of_a_restarted_one(command, fake):
    fake(token_delay_s=0.01)
    process = command.start(*TWO, "trainer.steps=2", INVENTED)
    command.wait_for_step(process, 1)
    time.sleep(0.7)  # in the middle of step 2
    command.servers(process)[0].kill()
    status, text = ended(process)
    assert status == 0, text
    assert [step["weight_version"] for step in command.steps()] == [1, 2]
    for step in command.steps():
        assert step["num_trajectories"] == PER_STEP and not FAILED & set(step["statuses"])
    versions = {}
    for trace in traces_of(command.folder()):
        versions.setdefault(".".join(trace.session_id.split(".")[:2]), set()).update(trace.weight_versions.tolist())
    assert versions == {"eval-heldout.0": {0}, "train.1": {0}, "train.2": {1}, "eval-heldout.2": {2}}
    assert " with weights_00000001" in command.log("train")
    assert not command.children()
    assert not list((command.root / "scratch").glob("swe_rl-*/*"))


def test_engines_that_are_gone_for_good_end_the_run(command, fake):
    fake(token_delay_s=0.02)
    process = command.start("job=rollout", *TWO, PAIRS, "engine.max_restarts=0")
    wait_for_line(command, process, "rollout", "Started: 'generate'")
    for server in command.servers(process):
        wait_for_requests(process, port_of(server))
    for server in command.servers(process):
        server.kill()
    started_s = time.monotonic()
    status, text = ended(process)
    assert status == 1 and "SIGKILL" in text and "Traceback" not in text, text
    assert f"{OF_PAIRS} of {OF_PAIRS} trajectories (100%) failed for reasons of infrastructure" in text
    assert time.monotonic() - started_s < 60  # not rollout.agent_timeout_s after rollout.agent_timeout_s
    assert not command.children()


@pytest.mark.parametrize("sent", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_server(command, fake, sent):
    fake(token_delay_s=0.02)
    process = command.start("job=rollout", *TWO, PAIRS)
    wait_for_line(command, process, "rollout", "Started: 'generate'")
    running = command.servers(process)
    process.send_signal(sent)
    status, text = ended(process)
    assert status == (130 if sent is signal.SIGINT else -sent) and "Traceback" not in text, text
    _, alive = psutil.wait_procs(running, timeout=40)
    assert len(running) == 2 and not alive


def test_a_server_that_dies_at_its_start_is_one_error(command, fake):
    said = "torch.OutOfMemoryError: CUDA out of memory."
    fake(start_log=said, die_at_start=1)
    done = command.run("job=rollout", *TWO)
    assert done.exit_status == 1 and "Traceback" not in done.text
    assert said in done.stderr and re.search(r"engines/engine[01]\.log", done.stderr)
    assert not command.children()


async def test_training_over_servers_of_somebody_else(command, monkeypatch):
    """The trainer's weights reach them through the folder that both sides see; nothing of theirs is stopped."""
    monkeypatch.setenv("VLLM_API_KEY", "sk-planted-77aa")
    settings = FakeSettings(model="theirs", vocab_size=VOCAB, api_key="sk-planted-77aa")
    async with FakeVllm(settings) as first, FakeVllm(settings) as second:
        urls = f"engine.urls=[{first.url}/v1,{second.url}]"
        done = await asyncio.to_thread(command.run, "engine=external", urls, "trainer.steps=2", INVENTED)
        assert done.exit_status == 0, done.text
        for server in (first, second):
            asked = [path for path, _ in server.requests if path.endswith(("completions", "generate"))]
            loaded = [body["kwargs"]["weights_path"] for path, body in server.requests if path == "/collective_rpc"]
            assert len(asked) > PER_STEP
            assert [path.rsplit("_", 1)[1] for path in loaded] == ["00000000", "00000001", "00000002"]
            assert server.model.weights == "2" and not server.paused
    assert {one.engine for one in traces_of(command.folder())} == {"engine0", "engine1"}
    assert not [path for path in command.root.rglob("*") if path.is_file() and b"sk-planted" in path.read_bytes()]


async def test_a_server_that_is_not_there(command):
    done = await asyncio.to_thread(command.run, "job=rollout", "engine=external", "engine.urls=[http://127.0.0.1:9]")
    assert done.exit_status == 2 and "Traceback" not in done.text
    assert "engine.urls: http://127.0.0.1:9 cannot be reached" in done.stderr
