"""`job=prepare` has issues written: resumed, counted, refused where they give the fix away, and read by the split."""

import asyncio
import json

import pytest

from swe_rl.config.compose import compose
from swe_rl.engine.endpoint.refusals import EndpointClosedError
from swe_rl.env.swe.read import read_split, read_whole_split
from swe_rl.job import prepare
from swe_rl.run.issues import write_issues
from tests.env.issues.test_issues_writing import GOOD, PATCH, TEST_PATCH
from tests.support.endpoints import AnyServer, chat

LEAK = GOOD + f"\nUse {PATCH.splitlines()[-1].lstrip('+ ')}"


def row(name, statement="", **columns):
    return {
        "instance_id": name,
        "repo": "a/clock",
        "base_commit": name,
        "problem_statement": statement,
        "patch": PATCH,
        "test_patch": TEST_PATCH,
        "FAIL_TO_PASS": ["checks/clock_cases.py::test_minutes_of_a_colon"],
        "PASS_TO_PASS": [],
    } | columns


@pytest.fixture
def composed(tmp_path):
    lines = [row("a", "It fails when the time has a colon."), row("b"), row("c")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def compose_with(url="http://127.0.0.1:1/v1", *overrides):
        return compose(
            [
                "job=prepare",
                "env=jsonl",
                f"env.dataset={tmp_path}/rows.jsonl",
                "env.split=train",
                "env.eval_split=train",
                f"env.issues={tmp_path}/issues.jsonl",
                f"paths.cache={tmp_path}/cache",
                "engine=endpoint",
                f"engine.url={url}",
                "engine.model=writer",
                "engine.dialect=chat",
                *overrides,
            ]
        ).config

    return compose_with


async def written_by(script, composed, *overrides):
    said = []
    async with AnyServer(script) as server:
        config = composed(server.base_url, *overrides)
        rows = read_whole_split(config.env, "train")
        result = await write_issues(config, rows, said.append)
    return result, said, server.requests


def is_greeting(asked):
    return "Answer with the word yes" in json.dumps(asked.body)


async def test_only_rows_without_a_text_are_asked_for_and_the_split_has_them(composed, tmp_path):
    result, said, requests = await written_by(lambda _: chat(GOOD, 100, 50), composed, "engine.price_in=10000")
    assert (result.written, result.refused) == (2, {})
    assert len(requests) == 3, "a greeting, and one for each of two rows"
    assert any("2 of 2 written" in line and "3 calls, 300 + 150 tokens, cost 3" in line for line in said)
    read = read_split(composed().env, "train")
    assert [it.problem_statement for it in read.instances] == ["It fails when the time has a colon.", GOOD, GOOD]
    again, _, requests = await written_by(lambda _: chat(GOOD), composed)
    assert again.written == 0 and not requests, "everything is there"


async def test_without_the_file_the_rows_are_left_out_as_before(composed):
    read = read_split(composed().env, "train")
    assert read.dropped == {"an empty problem_statement": ["b", "c"]}


async def test_short_texts_are_replaced_where_that_is_asked_for(composed):
    result, *_ = await written_by(lambda _: chat(GOOD), composed, "env.issue_words=20")
    assert result.written == 3
    read = read_split(composed("http://x/v1", "env.issue_words=20").env, "train")
    assert {it.problem_statement for it in read.instances} == {GOOD}


async def test_a_text_that_gives_the_fix_away_is_asked_for_again(composed):
    def script(asked):
        return chat(GOOD if len(asked.body["messages"]) > 2 else LEAK)

    result, _, requests = await written_by(script, composed)
    assert result.written == 2
    told = requests[-1].body["messages"][-1]["content"]
    assert "cannot be used: it shows code of the fix" in told


async def test_a_row_without_a_usable_text_stays_without_one_and_is_named(composed, tmp_path):
    result, said, requests = await written_by(lambda _: chat(LEAK), composed)
    assert result.written == 0 and set(result.refused) == {"b", "c"}
    assert len(requests) == 1 + 2 * 3
    assert any(line.startswith("  b: each of 3 texts was refused, the last because it shows code") for line in said)
    assert (tmp_path / "issues.jsonl").read_text() == ""


async def test_a_spent_budget_ends_it_and_the_next_start_goes_on(composed):
    with pytest.raises(EndpointClosedError, match="engine.budget_tokens=15 is spent"):
        await written_by(lambda _: chat(GOOD, 10, 5), composed, "engine.budget_tokens=15")
    result, _, requests = await written_by(lambda _: chat(GOOD, 10, 5), composed, "engine.budget_tokens=100")
    done = [it.problem_statement for it in read_split(composed().env, "train").instances]
    assert done.count(GOOD) == 2
    assert len(requests) == 1 + result.written


async def test_an_endpoint_without_a_reply_names_the_rows(composed):
    def script(asked):
        if is_greeting(asked):
            return chat()
        return chat(None, finish_reason="length")

    result, said, _ = await written_by(script, composed)
    assert result.refused == dict.fromkeys("bc", "each of 3 texts was refused, the last because it was cut")


async def test_the_job_writes_first_and_prepares_what_was_written(composed, capsys):
    pytest.importorskip("pyarrow")
    async with AnyServer(lambda _: chat(GOOD)) as server:
        config = composed(server.base_url, "sandbox=docker")
        assert await asyncio.to_thread(prepare.run, config, None) == 0
        first = capsys.readouterr().out
        assert await asyncio.to_thread(prepare.run, config, None) == 0
    assert "issues: 2 of 2 written" in first and "train: 3 instances in" in first
    assert "left out" not in first
    second = capsys.readouterr().out
    assert "issues:" not in second and "reading" not in second, "both are there"
