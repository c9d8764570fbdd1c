"""OpenTelemetry: spans against the lines they are made of, and a receiver that is there, is not, or comes back."""

import json
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest

pytest.importorskip("opentelemetry")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from swe_rl.check.packages import NEEDS
from swe_rl.config.choices import INFRA_STATUSES
from swe_rl.config.compose import compose
from swe_rl.config.schema import LoggerConfig
from swe_rl.logger import otel
from swe_rl.logger.folder import RunFolder
from swe_rl.logger.foreign import make_loggers
from swe_rl.logger.jsonl import JsonlWriter
from swe_rl.logger.spans import step_span, trajectory_span
from swe_rl.rollout.trajectory import Status
from tests.support.otlp_receiver import Receiver

ORIGIN_S = 1_000.0
SAID = "words of the policy"
RECORD = {"step": 1, "num_trajectories": 2, "step_s": 9.0, "reward_mean": 0.5, "generate_s": 7.0}


def turn(index):
    return {"index": index, "message": SAID, "command": SAID, "observation": SAID, "exit_code": index}


def trajectory(sample=0, status="resolved", *, turns=2, split="train", **more):
    name = f"{split}.1.i"
    began_s = {"boot": 1001.0, "agent": 1002.0, "grade": 1007.0, "end": 1008.5}
    return {
        "trajectory_id": f"{name}.{sample}.0", "group_id": name, "instance_id": "i", "split": split, "step": 1,
        "sample": sample, "attempt": 0, "status": status, "reward": None if status == "infra_error" else 1.0,
        "turns": [turn(index) for index in range(turns)], "patch": SAID, "error": SAID, "grade_log": SAID,
        "sampled_tokens": 12, "began_s": began_s, "times_s": {"boot": 1.0, "agent": 5.0, "grade": 1.5}, **more,
    }  # fmt: skip


def program(sample=0):
    """Two turns; of the second the call was held, and its command took no time."""
    return {
        "event": "program", "time": 1010.0, "trajectory_id": f"train.1.i.{sample}.0", "engines": ["e0", "e1"],
        "phases": [
            [1.0, 2.0, "boot", None, None], [2.0, 2.5, "prefill", 0, 0], [2.5, 3.0, "decode", 0, 0],
            [3.0, 4.0, "tool", None, 0], [4.0, 5.0, "hold", 1, 1], [5.0, 6.0, "decode", 1, 1],
            [7.0, 8.5, "grade", None, None],
        ],
        "turns": [[10, 0, 5], [20, 10, 7]],
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    run = RunFolder(tmp_path / "night").create()
    samples = [trajectory(0), trajectory(1, "infra_error")]
    for path, records in (
        (run.events_jsonl, [{"time": ORIGIN_S, "event": "started"}]),
        (run.trajectories(1), samples),
        (run.programs(1), [program(0), program(1), {"event": "engines", "time": 2000.0}]),
    ):
        with JsonlWriter(path) as writer:
            for record in records:
                writer.append(record)
    return run


@pytest.fixture
def receiver():
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def written(run, target, *, exit_status=0):
    [logger] = make_loggers(LoggerConfig(otel=target), run.path, run.name, {})
    logger.start()
    logger.log(RECORD, 1)
    logger.summarize({})
    logger.finish(exit_status)
    assert logger.failure == ""


def names(span):
    return Counter([span.name]) + sum(map(names, span.children), Counter())


def read_spans(path):
    requests = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        span
        for request in requests
        for resource in request["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def test_a_trajectory_has_its_turns_with_their_call_and_command():
    root = trajectory_span(trajectory(), program(), ORIGIN_S)
    assert (root.name, root.start_s, root.end_s, root.failed) == ("trajectory", 1001.0, 1008.5, False)
    boot, agent, grading = root.children
    assert [(it.name, it.start_s, it.end_s) for it in (boot, agent, grading)] == [
        ("boot", 1001.0, 1002.0), ("agent", 1002.0, 1007.0), ("grading", 1007.0, 1008.5),
    ]  # fmt: skip
    first, second = agent.children
    assert (first.start_s, first.end_s, second.start_s, second.end_s) == (1002.0, 1004.0, 1004.0, 1006.0)
    call, command = first.children
    assert (call.end_s, command.start_s, command.end_s) == (1003.0, 1003.0, 1004.0)
    assert command.attributes == {"swe_rl.exit_code": 0}
    [held] = second.children
    assert held.attributes == {
        "gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 20, "gen_ai.usage.output_tokens": 7,
        "swe_rl.cached_tokens": 10, "swe_rl.engine": "e1", "swe_rl.hold_s": 1.0, "swe_rl.decode_s": 1.0,
    }  # fmt: skip


def test_turns_that_do_not_match_their_replies_say_no_exit_status():
    root = trajectory_span(trajectory(turns=1), program(), ORIGIN_S)
    assert [child.attributes for child in root.children[1].children[0].children][1] == {}


def test_what_took_no_time_is_a_turn_all_the_same_and_an_agent_without_a_model_has_commands():
    alone = program() | {"phases": [[3.0, 4.0, "tool", None, None]], "turns": [[10, 0, 5]]}
    agent = trajectory_span(trajectory(), alone, ORIGIN_S).children[1]
    assert [(it.name, it.start_s, it.end_s) for it in agent.children] == [
        ("turn", 1002.0, 1002.0), ("command", 1003.0, 1004.0),
    ]  # fmt: skip


def test_what_never_began_has_no_span_and_what_infrastructure_ended_is_an_error():
    assert trajectory_span(trajectory(began_s={}), program(), ORIGIN_S) is None
    for status in Status:
        assert trajectory_span(trajectory(status=status.value), program(), ORIGIN_S).failed is (
            status in INFRA_STATUSES
        )


def test_a_step_ends_when_its_trajectories_are_written():
    span = step_span(RECORD, 1010.0)
    assert (span.start_s, span.end_s, span.attributes["swe_rl.reward_mean"]) == (1001.0, 1010.0, 0.5)


def test_a_file_has_a_trace_for_each_trajectory_and_nothing_of_what_was_said(folder):
    written(folder, "file")
    spans = read_spans(folder.spans(1))
    expected = sum((names(trajectory_span(trajectory(), program(), ORIGIN_S)) for _ in range(2)), Counter(step=1))
    assert Counter(span["name"] for span in spans) == expected
    by_id = {span["spanId"]: span for span in spans}
    assert all(by_id[span["parentSpanId"]]["traceId"] == span["traceId"] for span in spans if "parentSpanId" in span)
    [step] = [span for span in spans if span["name"] == "step"]
    roots = [span for span in spans if span["name"] == "trajectory"]
    assert {span["links"][0]["spanId"] for span in roots} == {step["spanId"]}
    assert len({span["traceId"] for span in (*roots, step)}) == 3
    assert [span["status"].get("code") for span in roots] == [None, 2]
    assert all(len(span["spanId"]) == 16 and int(span["spanId"], 16) for span in spans)
    assert SAID not in folder.spans(1).read_text()


def test_a_receiver_gets_what_the_file_has(folder, receiver, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer of-a-test")
    monkeypatch.setattr(otel, "_SPANS_PER_REQUEST", 5)
    written(folder, "file")
    written(folder, receiver.url)
    in_file = read_spans(folder.spans(1))
    assert Counter(span["name"] for span in in_file) == Counter(span.name for span in receiver.spans)
    times = sorted((span.name, str(span.start_time_unix_nano), str(span.end_time_unix_nano)) for span in receiver.spans)
    assert times == sorted((it["name"], it["startTimeUnixNano"], it["endTimeUnixNano"]) for it in in_file)
    assert len(receiver.headers) == 2
    for path, headers in receiver.headers:
        assert path == "/v1/traces" and headers["Authorization"] == "Bearer of-a-test"
    assert not any("of-a-test" in path.read_text() for path in folder.path.rglob("*.jsonl"))


def test_evaluations_come_once_and_those_of_an_earlier_start_not_again(folder):
    with JsonlWriter(folder.eval_trajectories(0)) as writer:
        writer.append(trajectory(split="eval-heldout"))
    with JsonlWriter(folder.evals_jsonl) as writer:
        writer.append({"time": 50.0, "step": 7, "split": "heldout", "eval_s": 2.0})
        writer.append({"time": time.time() + 60, "step": 0, "split": "heldout", "eval_s": 2.0})
    written(folder, "file")
    assert Counter(span["name"] for span in read_spans(folder.eval_spans(0))) == {
        "evaluation": 1, "trajectory": 1, "boot": 1, "agent": 1, "grading": 1,
    }  # fmt: skip
    assert not folder.eval_spans(7).exists()


def test_an_evaluation_that_went_on_sends_what_it_took_over_no_second_time(folder):
    """The first start ended with too many failures of infrastructure; the second made the missing attempt."""
    now_s = time.time()
    later_s = {"boot": now_s + 70, "agent": now_s + 71, "end": now_s + 80}
    attempts = [trajectory(0, split="eval-heldout"), trajectory(1, split="eval-heldout", began_s=later_s)]
    for line_s, attempt in zip((now_s + 60, now_s + 90), attempts, strict=True):
        with JsonlWriter(folder.eval_trajectories(0)) as writer:
            writer.append(attempt)
        with JsonlWriter(folder.evals_jsonl) as writer:
            writer.append({"time": line_s, "step": 0, "split": "heldout", "eval_s": 2.0})
        written(folder, "file")
        folder.evals_jsonl.write_text(folder.evals_jsonl.read_text().replace(str(now_s + 60), "2000.0"))
    found = Counter(span["name"] for span in read_spans(folder.eval_spans(0)))
    assert (found["evaluation"], found["trajectory"]) == (2, 2)


def test_a_step_of_a_warm_start_has_no_spans(tmp_path):
    written(RunFolder(tmp_path / "night").create(), "file")
    assert not (tmp_path / "night" / "spans").exists()


def test_a_receiver_that_is_down_is_said_once_and_asked_again_after_a_while(folder, receiver, monkeypatch, caplog):
    clock = SimpleNamespace(now=0.0)
    logger = otel.OtelLogger(folder.path, "night", receiver.url, lambda: clock.now)
    receiver.answers = 400  # an answer after which the library itself does not try again
    for _ in range(3):
        logger.log(RECORD, 1)
    assert (len(receiver.headers), receiver.spans) == (1, [])
    receiver.answers, clock.now = 200, 61.0
    logger.log(RECORD, 1)
    logger.finish(0)
    assert len(receiver.spans) > 0 and len(receiver.headers) == 2
    assert caplog.text.count("does not take spans") == 1
    assert f"{3 * len(receiver.spans)} spans were not taken" in caplog.text


def test_nobody_at_the_address_delays_no_step_and_hardly_the_end(folder, monkeypatch):
    monkeypatch.setattr(otel, "_TIMEOUT_S", 0.5)
    [logger] = make_loggers(LoggerConfig(otel="http://127.0.0.1:9"), folder.path, "night", {})
    logger.start()
    began_s = time.monotonic()
    for _ in range(50):
        logger.log(RECORD, 1)
    assert time.monotonic() - began_s < 0.25
    logger.finish(0)
    assert time.monotonic() - began_s < 5 and logger.failure == ""


def test_its_addresses():
    for address in ("http://a:4318", "http://a:4318/", "http://a:4318/v1", "http://a:4318/v1/traces"):
        assert otel.endpoint_of(address) == "http://a:4318/v1/traces"
    assert otel.endpoint_of("https://b/otlp") == "https://b/otlp/v1/traces"


def test_its_option_and_its_extra():
    composed = compose(["logger=[otel,tensorboard]"])
    assert composed.config.logger.otel == "file" and LoggerConfig().otel is None
    [need] = [need for need in NEEDS if need.key == "logger.otel"]
    assert need.extra == "otel" and need.wanted(composed.config, None, None)
