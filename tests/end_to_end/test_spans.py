"""`logger.otel`: what a receiver gets of a real run, held against the lines of the run's folder."""

import threading
from collections import Counter, defaultdict

import pytest

pytest.importorskip("opentelemetry")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from tests.support.otlp_receiver import Receiver

pytestmark = pytest.mark.slow

_TOLERANCE_S = 0.05
_MS = 0.001


def values_of(span):
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes}


def seconds(span):
    return span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run, and the spans that were sent, by the id of what they are in."""
    from tests.end_to_end.conftest import FEW, Command, root_list

    command = Command(tmp_path_factory.mktemp("spans"))
    with Receiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever)
        thread.start()
        done = command.run(*FEW, *root_list(command.root), "trainer.steps=2", f"logger.otel={receiver.url}")
        receiver.shutdown()
        thread.join()
    assert done.exit_status == 0, done.text
    below = defaultdict(list)
    for span in receiver.spans:
        below[span.parent_span_id].append(span)
    return command, receiver.spans, below


def records(command, pattern):
    return [record for path in command.folder().glob(pattern) for record in command.read(path)]


def test_counts_are_those_of_the_folder(run):
    command, spans, _ = run
    trajectories = records(command, "trajectories/*.jsonl")
    programs = [event for event in records(command, "programs/*.jsonl") if event["event"] == "program"]
    counts = Counter(span.name for span in spans)
    assert counts["step"] == len(command.steps()) == 2
    assert counts["evaluation"] == len(records(command, "evals.jsonl")) > 0
    assert counts["trajectory"] == len(trajectories) > 0
    assert counts["grading"] == sum("grade" in record["began_s"] for record in trajectories)
    assert counts["turn"] == sum(len(event["turns"]) for event in programs) > 0
    phases = [phase for event in programs for phase in event["phases"]]
    assert counts["command"] == sum(phase[2] == "tool" for phase in phases) > 0
    called = sum(len({phase[4] for phase in event["phases"] if phase[2] == "decode"}) for event in programs)
    assert counts["engine call"] == called > 0


def test_each_trajectory_is_found_with_its_times_and_tokens(run):
    command, spans, below = run
    by_name = {record["trajectory_id"]: record for record in records(command, "trajectories/*.jsonl")}
    roots = [span for span in spans if span.name == "trajectory"]
    assert {values_of(span)["swe_rl.trajectory_id"] for span in roots} == set(by_name)
    for root in roots:
        said = values_of(root)
        record = by_name[said["swe_rl.trajectory_id"]]
        began_s, times_s = record["began_s"], record["times_s"]
        assert seconds(root) == pytest.approx((began_s["boot"], began_s["end"]), abs=_MS)
        assert said["swe_rl.status"] == record["status"] and said.get("swe_rl.reward") == record["reward"]
        names = {"boot": "boot", "agent": "agent", "grading": "grade"}
        for child in below[root.span_id]:
            start_s, end_s = seconds(child)
            assert end_s - start_s == pytest.approx(times_s[names[child.name]], abs=_MS)
        if record["split"].startswith("eval"):
            continue
        [agent] = [child for child in below[root.span_id] if child.name == "agent"]
        turns = [child for child in below[agent.span_id] if child.name == "turn"]
        calls = [call for turn in turns for call in below[turn.span_id] if call.name == "engine call"]
        sampled = sum(values_of(call)["gen_ai.usage.output_tokens"] for call in calls)
        assert sampled == record["sampled_tokens"] and len(turns) == record["num_calls"]
        commands = [it for turn in turns for it in below[turn.span_id] if it.name == "command"]
        took_s = sum(end_s - start_s for start_s, end_s in map(seconds, commands))
        assert took_s == pytest.approx(sum(turn["command_s"] for turn in record["turns"]), abs=_TOLERANCE_S)


def test_what_is_below_lies_within_and_what_is_of_a_step_is_linked_to_it(run):
    _, spans, below = run
    by_id = {span.span_id: span for span in spans}
    for parent, children in below.items():
        if parent:
            start_s, end_s = seconds(by_id[parent])
            for child in children:
                assert child.trace_id == by_id[parent].trace_id
                assert start_s - _TOLERANCE_S <= seconds(child)[0] <= seconds(child)[1] <= end_s + _TOLERANCE_S
    roots = [span for span in spans if span.name == "trajectory"]
    assert roots and any(below.values())
    for root in roots:
        [link] = root.links
        about = by_id[link.span_id]
        is_evaluation = values_of(root)["swe_rl.split"].startswith("eval")
        assert about.name == ("evaluation" if is_evaluation else "step")
        assert values_of(about)["swe_rl.step"] == values_of(root)["swe_rl.step"]
        assert seconds(about)[0] - _TOLERANCE_S <= seconds(root)[0] <= seconds(root)[1] <= seconds(about)[1] + _MS


def test_no_span_has_a_word_of_what_was_said(run):
    command, spans, _ = run
    sent = "\n".join(str(span) for span in spans)
    said = {turn[key] for record in records(command, "trajectories/*.jsonl") for turn in record["turns"]
            for key in ("message", "command", "observation") if turn[key] and len(turn[key]) > 12}  # fmt: skip
    assert said and not [text for text in said if text in sent]
