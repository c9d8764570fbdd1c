"""What `sft.data` becomes: files, filters, masks, held-out instances, passes."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest

from swe_rl.agent.agent import AgentResult, Exit, Turn
from swe_rl.config.compose import compose
from swe_rl.imitation import data as imitation_data
from swe_rl.imitation.data import (
    NO_PROMPT,
    closes_reasoning,
    encode_record,
    held_out_names,
    keep_shortest,
    load_data,
    survey_data,
)
from swe_rl.imitation.files import iter_records, list_files
from swe_rl.imitation.formats import read_record
from swe_rl.imitation.passes import Passes
from swe_rl.imitation.record import DataError, Example
from swe_rl.job.eval import _write_for_others
from swe_rl.logger.folder import RunFolder
from swe_rl.model.load import load_tokenizer
from swe_rl.model.make_renderer import make_renderer
from swe_rl.rollout.trajectory import Status, Trajectory, TrajectoryId
from tests.imitation.conftest import atif, mini_swe_traj, openai_row, swe_agent_traj, swe_smith_row


def sft_of(*overrides):
    return compose(["job=sft", *overrides]).config.sft


def example(name, tokens=4):
    return Example(f"f, line {name}", name, np.zeros(tokens, np.int32), np.ones(tokens, np.bool_))


def trajectory_of(instance_id, *, split="train", step=1, sample=0, attempt=0, **values):
    name = TrajectoryId(split, step, instance_id, sample, attempt)
    given = {"status": Status.resolved, "reward": 1.0, "trained": True, "in_baseline": True}
    return Trajectory(trajectory_id=str(name), group_id=name.group_id, **asdict(name), **given | values)


def test_a_folder_stands_for_its_files_whatever_their_format(write, tmp_path):
    write("all/a.jsonl", [openai_row(), swe_smith_row()])
    write("all/deep/b.traj", swe_agent_traj())
    write("all/c.traj.json", mini_swe_traj())
    write("all/d.json", [openai_row(), openai_row()])
    write("all/e.json", {"one": atif(), "two": atif()})
    write("all/f.json", mini_swe_traj()["messages"][:4])
    (tmp_path / "all" / "notes.txt").write_text("mine")
    found = [where for file in list_files(str(tmp_path / "all")) for where, _ in iter_records(file)]
    assert [where.rpartition("/")[2] for where in found] == [
        "a.jsonl, line 1",
        "a.jsonl, line 2",
        "c.traj.json",
        "d.json, record 1",
        "d.json, record 2",
        "b.traj",
        "e.json, entry one",
        "e.json, entry two",
        "f.json",
    ]
    assert survey_data(sft_of(f"sft.data=[{tmp_path / 'all'}]")).records == 9


def test_an_attempt_that_harbor_wrote_in_two_formats_is_read_once(write, tmp_path):
    write("a/agent/trajectory.json", atif())
    write("a/agent/mini-swe-agent.trajectory.json", mini_swe_traj())
    write("b/agent/trajectory.json", atif())
    write("b/agent/gemini-cli.trajectory.json", {"messages": "in a format of its own"})
    write("c/agent/trajectory.json", atif())
    found = [str(file.relative_to(tmp_path)) for file in list_files(str(tmp_path))]
    assert found == ["a/agent/mini-swe-agent.trajectory.json", "b/agent/trajectory.json", "c/agent/trajectory.json"]


def write_evaluated(folder, sample, reward):
    """Writes one attempt of `agent=bash` as `job=eval` does. Returns the path of its ATIF."""
    turns = [
        Turn(0, "```bash\nls\n```", "ls", f"a.py {sample}", exit_code=0),
        Turn(1, "```bash\nsubmit\n```", "submit", None),
    ]
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "It fails."},
        {"role": "assistant", "content": turns[0].message},
        {"role": "user", "content": turns[0].observation},
        {"role": "assistant", "content": turns[1].message},
    ]
    result = AgentResult(Exit.SUBMITTED, turns, messages)
    status = Status.unresolved if reward is not None and reward < 1 else Status.resolved
    attempt = trajectory_of("one", sample=sample, reward=reward, status=status)
    session = SimpleNamespace(config=compose(["job=eval"]).config, folder=folder)
    _write_for_others(session, attempt, result)
    return folder.attempt_file("one", sample, "atif.json")


def test_an_attempt_that_an_evaluation_wrote_in_two_formats_is_read_once(tmp_path, renderer):
    folder = RunFolder(tmp_path)
    good = write_evaluated(folder, 0, 1.0)
    write_evaluated(folder, 1, 0.0)
    sft = sft_of(f"sft.data=[{folder.agent_trajectories}]", "sft.heldout_share=0")
    assert survey_data(sft).records == 2
    data = load_data(sft, renderer, 2048)
    assert [one.where for one in data.trained] == [str(good)] and data.left_out == {"a lower reward": 1}


def test_either_format_that_an_evaluation_writes_tells_the_reward(tmp_path):
    folder = RunFolder(tmp_path)
    write_evaluated(folder, 0, 0.5).unlink()
    (file,) = list_files(str(folder.agent_trajectories))
    ((where, record),) = iter_records(file)
    read = read_record(record, where)
    assert file.name == "one.traj.json" and (read.instance_id, read.reward) == ("one", 0.5)


def test_rows_of_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")

    for name, row in (("smith", swe_smith_row()), ("openai", openai_row(resolved=False))):
        row["messages"] = row["messages"] if isinstance(row["messages"], str) else row["messages"][2:]
        parquet.write_table(pyarrow.Table.from_pylist([row, row]), tmp_path / f"{name}.parquet")
    _, (where, row) = iter_records(tmp_path / "smith.parquet")
    assert where.endswith("smith.parquet, row 1") and read_record(row, where).reward == 1.0
    (where, row), _ = iter_records(tmp_path / "openai.parquet")
    read = read_record(row, where)
    assert read.tools[0]["function"]["name"] == "bash" and read.reward == 0.0
    assert [message["role"] for message in read.messages] == ["assistant", "tool", "assistant"]


@pytest.mark.parametrize("made", [atif, mini_swe_traj])
def test_parquet_tells_that_our_attempt_got_no_reward(tmp_path, made):
    """A masked attempt is null in the column that has the rewards of others."""
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")

    rows = []
    for reward in (None, 1.0):
        row = made()
        place = row.get("extra", row)
        place.update(instance_id="one", status="resolved", reward=reward)
        row.pop("info", None)
        rows.append(row)
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    read = [read_record(record, where) for where, record in iter_records(tmp_path / "rows.parquet")]
    assert [record.is_worthless for record in read] == [True, False]


def test_parquet_gives_no_call_and_no_tool_the_fields_of_another(tmp_path):
    """Arrow has one type for a column, whose objects have the fields of all."""
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")

    rows = []
    for name, arguments in (("bash", {"command": "ls"}), ("edit", {"path": "x", "range": {"first": 1}})):
        properties = {key: {"type": "string"} for key in arguments}
        tool = {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}
        reply = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": name, "arguments": arguments}}],
        }
        rows.append({"messages": [{"role": "user", "content": "hi"}, reply], "tools": [tool]})
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    from_parquet = [read_record(row, where) for where, row in iter_records(tmp_path / "rows.parquet")]
    as_written = [read_record(row, "f") for row in rows]
    assert [one.messages for one in from_parquet] == [one.messages for one in as_written]
    assert [one.tools for one in from_parquet] == [one.tools for one in as_written]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.jsonl", b'{"messages": []}\n{broken\n', r"x\.jsonl, line 1: messages is no list"),
        ("y.jsonl", b"\n\n{broken\n", r"y\.jsonl, line 3: this is not JSON"),
        ("z.jsonl", b"\xff\xfe\n", r"z\.jsonl, line 1: this is not UTF-8"),
        ("a.jsonl", b"[1]\n", r"a\.jsonl, line 1: a record is an object, not list"),
        ("b.json", b'{"messages"', r"b\.json: this is not JSON"),
        ("c.parquet", b"no parquet", r"c\.parquet cannot be read"),
        ("d.txt", b"hi", r"d\.txt has none of the endings"),
        ("e.jsonl", b"\n", "there is no row"),
        ("f.jsonl", b"[" * 100_000 + b"\n", r"f\.jsonl, line 1: this is not JSON"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        survey_data(sft_of(f"sft.data=[{tmp_path / name}]"))
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match="is not there"):
        survey_data(sft_of(f"sft.data=[{tmp_path / 'none.jsonl'}]"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no file with one of the endings"):
        survey_data(sft_of(f"sft.data=[{tmp_path / 'empty'}]"))


def learned_text(renderer, made):
    return renderer.decode(made.token_ids[made.loss_mask].tolist())


def test_only_what_the_policy_said_is_learned(renderer):
    made = encode_record(read_record(swe_smith_row(), "f"), renderer)
    text = learned_text(renderer, made)
    assert "cat f.py" in text and "<function=submit>" in text and text.count("<|im_end|>") == 1  # the last one is cut
    assert "It fails." not in text and "OBSERVATION" not in text and "helpful" not in text


def test_replies_whose_command_failed_are_read_and_not_learned(renderer):
    record = read_record(mini_swe_traj(), "x.traj.json")
    whole, masked = (encode_record(record, renderer, mask_errors=masks) for masks in (False, True))
    assert np.array_equal(whole.token_ids, masked.token_ids)
    assert "cat g.py" in learned_text(renderer, whole) and "I think." in learned_text(renderer, whole)
    assert "cat g.py" not in learned_text(renderer, masked) and "I think." not in learned_text(renderer, masked)
    assert '"ls"' in learned_text(renderer, masked) and "COMPLETE" in learned_text(renderer, masked)


def test_filters_count_what_they_leave_out(write, renderer):
    rows = [
        openai_row(instance_id="a", reward=1.0),
        openai_row(instance_id="a", reward=0.5),
        openai_row(instance_id="b"),
        openai_row(
            instance_id="c", messages=[{"role": "user", "content": "x" * 9000}, {"role": "assistant", "content": "y"}]
        ),
        openai_row(
            instance_id="d",
            messages=[{"role": "user", "content": "q"}, {"role": "assistant", "content": "no", "weight": 0}],
        ),
        openai_row(instance_id="e", messages=[{"role": "assistant", "content": "no"}]),
    ]
    sft = sft_of(f"sft.data=[{write('rows.jsonl', rows)}]", "sft.heldout_share=0")
    data = load_data(sft, renderer, 2048)
    assert [one.instance_id for one in data.trained] == ["a", "b"] and not data.held_out
    assert data.left_out == {"a lower reward": 1, "more tokens": 1, "nothing to learn": 1, NO_PROMPT: 1}
    assert len(load_data(replace(sft, min_reward=None), renderer, 2048).trained) == 3
    one_each = load_data(replace(sft, min_reward=0.5, max_per_instance=1), renderer, 2048)
    assert [one.where.rpartition(" ")[2] for one in one_each.trained] == ["1", "3"]


def test_nothing_left_is_refused_with_the_keys_that_left_it_out(write, renderer):
    sft = sft_of(f"sft.data=[{write('rows.jsonl', [openai_row(resolved=False)])}]")
    with pytest.raises(DataError, match=r"no record is left.*1 have a lower reward.*Change sft\.min_reward"):
        load_data(sft, renderer, 2048)
    with pytest.raises(DataError, match=r"1 have more tokens.*Change sft\.max_tokens \(at most 7 tokens now\)"):
        load_data(replace(sft, min_reward=None), renderer, 7)


def test_the_shortest_of_each_instance_are_kept():
    made = [example("a", 9), example("b", 5), example("a", 3), example("a", 4)]
    assert [len(one.token_ids) for one in keep_shortest(made, 2)] == [5, 3, 4]
    assert keep_shortest(made, None) == made


@pytest.mark.parametrize(("share", "instances", "expected"), [(0.0, 9, 0), (0.05, 9, 1), (0.5, 10, 5), (0.9, 1, 0)])
def test_instances_are_held_out_and_never_all(share, instances, expected):
    made = [example(f"i{number}") for number in range(instances)]
    names = held_out_names(made, share, 0)
    assert len(names) == expected
    assert names == held_out_names(made[::-1], share, 0)


def test_all_of_an_instance_are_on_one_side(write, renderer):
    rows = [openai_row(instance_id=f"i{number % 5}") for number in range(20)]
    sft = sft_of(f"sft.data=[{write('rows.jsonl', rows)}]", "sft.heldout_share=0.3")
    data = load_data(sft, renderer, 2048)
    trained, held_out = ({one.instance_id for one in side} for side in (data.trained, data.held_out))
    assert not trained & held_out and len(data.held_out) == 8


def test_reasoning_is_counted_and_only_a_thinking_prompt_leaves_room_for_it(write, renderer):
    """With model.thinking=false the prompt of `qwen` has a closed think block before the reply."""
    rows = [openai_row(instance_id=name) for name in "abc"]
    rows[0]["messages"][2]["reasoning_content"] = "First the file."
    rows[1]["messages"][4]["content"] = "<think>\nEnough.\n</think>\n\nIt is done."
    rows[2]["messages"][1]["content"] = "It prints </think>."
    assert survey_data(sft_of(f"sft.data=[{write('rows.jsonl', rows)}]")).with_reasoning == 2
    model = compose([]).config.model
    told = {
        (template, thinking): closes_reasoning(
            make_renderer(replace(model, chat_template=template, thinking=thinking), load_tokenizer(model))
        )
        for template in ("qwen", "qwen_plain")
        for thinking in (True, False)
    }
    assert [case for case, closes in told.items() if closes] == [("qwen", False)]


def test_tools_of_a_file_are_for_rows_that_list_none(write, renderer):
    row = openai_row()
    tools = row.pop("tools")
    without = sft_of(f"sft.data=[{write('rows.jsonl', [row])}]")
    assert survey_data(without).calls_without_tools == 1
    with_tools = replace(without, tools=write("tools.json", tools))
    assert survey_data(with_tools).calls_without_tools == 0
    lengths = [len(load_data(sft, renderer, 2048).trained[0].token_ids) for sft in (without, with_tools)]
    assert lengths[1] > lengths[0]
    with pytest.raises(DataError, match=r"sft\.tools.*has no tool"):
        survey_data(replace(without, tools=write("none.json", [])))


def passes_of(number, *overrides):
    config = compose(["job=sft", "sft.data=[x]", "sft.heldout_share=0", *overrides]).config
    made = imitation_data.Data(trained=[example(f"i{place}", place + 1) for place in range(number)])
    return Passes(config, made)


def test_a_pass_has_every_example_once_and_the_next_one_another_order():
    passes = passes_of(10, "sft.examples_per_batch=5", "sft.epochs=2")
    assert passes.stages[0].steps == 4
    drawn = [[len(ids) for ids, _ in passes.draw(step)] for step in range(1, 5)]
    assert sorted(drawn[0] + drawn[1]) == list(range(1, 11)) == sorted(drawn[2] + drawn[3])
    assert drawn[:2] != drawn[2:]
    assert drawn == [
        [len(ids) for ids, _ in passes_of(10, "sft.examples_per_batch=5").draw(step)] for step in range(1, 5)
    ]


def test_passes_go_on_within_a_batch_and_end_with_the_last_example():
    passes = passes_of(3, "sft.examples_per_batch=2", "sft.epochs=3")
    drawn = [len(ids) for step in range(1, passes.stages[0].steps + 1) for ids, _ in passes.draw(step)]
    assert passes.stages[0].steps == 5 and all(drawn.count(length) >= 3 for length in (1, 2, 3))


def test_other_examples_are_refused_by_who_goes_on():
    passes = passes_of(4)
    passes.restore(passes.state())
    with pytest.raises(DataError, match=r"others than when this run began \(4 then, 5 now"):
        passes_of(5).restore(passes.state())


def test_defaults_fit_data():
    """Keys that are null have other values for data than for demonstrations from random weights."""
    from swe_rl.facts.warm_start import updates_of

    demonstrations = updates_of(compose(["job=sft"]).config)
    data = updates_of(compose(["job=sft", "sft.data=[x]"]).config, 50)
    adapter = updates_of(compose(["job=sft", "sft.data=[x]", "trainer.lora_rank=8"]).config, 50)
    assert (demonstrations.steps, demonstrations.beginner_steps, demonstrations.lr) == (5000, 150, 2e-3)
    assert (data.steps, data.beginner_steps, data.lr, data.warmup_steps) == (19, 0, 1e-5, 1)
    assert data.checkpoint_every_steps == 7 and adapter.lr == 2e-4
