"""A trajectory that begins within an earlier one: the same ids, none of them trained, a sandbox in the same state."""

import dataclasses
import random

import numpy as np
import pytest

from swe_rl.agent.bash import BashAgent
from swe_rl.agent.client import ChatClient
from swe_rl.config.schema import AgentConfig, GatewayConfig, RouterConfig
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.env.protocol import Grade
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.session import SessionSettings
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.tiny import build_tokenizer
from swe_rl.rollout.attempt import Attempter
from swe_rl.rollout.batch import count_tokens, degenerate_groups, set_advantages
from swe_rl.rollout.prefix_files import PrefixFiles
from swe_rl.rollout.prefixes import Choice
from swe_rl.rollout.rows import traced_rows, weighed
from swe_rl.rollout.trajectory import Order, Status, Trajectory, TrajectoryId
from swe_rl.router.make import make_router
from swe_rl.sandbox.protocol import Workspace
from tests.support.scripted_sandbox import ScriptedProvider

DIFF = "ZGlmZiAtLWdpdA==:"  # base64 of what git would print, and no name of a file that it could not read
SAYS = [f"```bash\n{command}\n```" for command in ("cat a.py", "sed -i s/a/b/ a.py", "submit")]


class Env:
    name = "fake"

    def workspace(self, instance):
        return Workspace()

    def prompt(self, instance):
        return instance.problem_statement

    async def grade(self, instance, patch, sandboxes, timeout_s):
        return Grade(True, True, {"t::a": True}, {"t::b": True})


@pytest.fixture
async def play(tmp_path, config, instance):
    """`await play(sample, prefix, ...)`: an attempt by a policy that always says SAYS, its traces and its commands."""
    renderer = ChatRenderer(
        build_tokenizer([*SAYS, "You are an agent."] * 3, 400), template="qwen_plain", thinking=False
    )
    replies = [tuple(renderer.reply({"role": "assistant", "content": said})) for said in SAYS]

    def answer(prompt_ids):
        turn = renderer.decode(prompt_ids).count("<|im_start|>assistant") - 1
        ids, whole = tuple(prompt_ids), replies[turn]
        begun = max(length for length in range(len(whole)) if ids[len(ids) - length :] == whole[:length])
        return whole[begun:]

    async def run(
        sample, prefix=None, respond=lambda asked: DIFF if "git" in asked.command else "a = 1\n", processes=1
    ):
        engine, sandboxes = ScriptedEngine(answer), ScriptedProvider(respond)
        store, client = TraceStore(tmp_path / f"traces{sample}.db"), ChatClient(rng=random.Random(0))
        gateway = Gateway(
            [engine],
            make_router(RouterConfig(), [engine]),
            renderer,
            store,
            model_name="tiny",
            config=GatewayConfig(max_body_mb=1, processes=processes),
            max_model_len=2048,
        )
        agent = BashAgent(AgentConfig(system_prompt="short"), max_turns=4, command_timeout_s=5.0, client=client)
        attempter = Attempter(Env(), agent, gateway, sandboxes, config.rollout, config.env, model_name="tiny")
        settings = SessionSettings(96, 1024, max_prompt_tokens=200, seed=3)
        order = Order(instance(), TrajectoryId("train", 1, "one", sample, 0), settings, prefix=prefix)
        try:
            await gateway.start()
            trajectory, _ = await attempter.run(order)
            traces = store.traces(order.trajectory_id)
        finally:
            await client.close()
            await gateway.close()
            store.close()
        count_tokens(trajectory, traces)
        return trajectory, traces, sandboxes

    return run


@pytest.fixture
async def source(play, tmp_path):
    """The earlier trajectory, its row, and `prefix(tokens)` of it."""
    trajectory, traces, _ = await play(0)
    assert trajectory.status is Status.resolved and len(traces) == 3
    files = PrefixFiles(tmp_path / "prefixes")
    files.put(trajectory, traces)
    [row] = traced_rows(trajectory, traces)
    return trajectory, row, lambda tokens: files.find(Choice(trajectory.trajectory_id, tokens))


@pytest.mark.parametrize(("turns", "begun", "processes"), [(0, 4, 1), (1, 0, 1), (1, 7, 1), (2, 0, 1), (1, 7, 2)])
async def test_replayed_ids_are_those_that_were_sampled_and_none_is_trained(source, play, turns, begun, processes):
    earlier, row, prefix_of = source
    sampled = [len(ids) for ids in prefix_of(999).sampled_ids]
    prefix = prefix_of(sum(sampled[:turns]) + begun)
    assert (len(prefix.turns), len(prefix.begun_ids)) == (turns, begun)
    trajectory, traces, sandboxes = await play(1, prefix, processes=processes)
    assert (trajectory.status, trajectory.error, trajectory.prefix_dropped) == (Status.resolved, None, "")
    [mine] = traced_rows(trajectory, traces)
    np.testing.assert_array_equal(mine.token_ids, row.token_ids)  # the same policy goes on: the whole is the same
    repeated = np.flatnonzero(row.loss_mask)[: prefix.sampled_tokens]
    expected = row.loss_mask.copy()
    expected[repeated] = False
    np.testing.assert_array_equal(mine.loss_mask, expected)
    [weighted] = weighed([mine], [dataclasses.replace(trajectory, advantage=1.0)])
    assert len(weighted.advantage) == expected.sum() and (weighted.advantage == 1.0).all()  # of what it sampled alone
    assert [turn.replayed for turn in trajectory.turns] == [place < turns for place in range(3)]
    assert [turn.message for turn in trajectory.turns] == SAYS
    assert trajectory.prompt_tokens == earlier.prompt_tokens
    assert trajectory.response_tokens == earlier.response_tokens
    assert trajectory.prefix_tokens + sum(trace.tokens - traces[0].prompt_tokens for trace in traces[-1:]) == (
        trajectory.response_tokens
    )
    assert trajectory.sampled_tokens == earlier.sampled_tokens - prefix.sampled_tokens
    assert trajectory.prefix_breaks == 0 and trajectory.num_calls == len(traces) == 3 - turns
    assert trajectory.beginning == (earlier.trajectory_id, prefix.sampled_tokens)
    [sandbox] = sandboxes.sandboxes
    assert sandbox.commands[:2] == ["cat a.py", "sed -i s/a/b/ a.py"]  # both done here, by whomever they were said


async def test_an_observation_that_differs_drops_the_replay(source, play):
    earlier, row, prefix_of = source

    def respond(asked):
        return DIFF if "git" in asked.command else "b = 2\n"

    trajectory, traces, sandboxes = await play(1, prefix_of(999), respond)
    assert trajectory.status is Status.resolved
    assert trajectory.prefix_dropped == "turn 0: its command answers something else"
    assert trajectory.prefix == earlier.trajectory_id and trajectory.beginning == ("", 0)
    assert trajectory.prefix_sampled_tokens == len(prefix_of(999).sampled_ids[0]) - 1
    assert len(traces) == 3 and not any(turn.replayed for turn in trajectory.turns) and trajectory.prefix_tokens == 0
    [mine] = traced_rows(trajectory, traces)
    assert mine.loss_mask.sum() == row.loss_mask.sum()
    assert len(sandboxes.sandboxes) == 2 and all(sandbox.closed for sandbox in sandboxes.sandboxes)
    assert sandboxes.sandboxes[0].commands == ["cat a.py"]


def test_only_trajectories_that_began_alike_are_compared(trajectory, config):
    """Two of a group could not repeat its prefix."""
    began = {"prefix": "s", "prefix_sampled_tokens": 3}
    dropped = began | {"prefix_dropped": "turn 0: x"}
    solved, failed = Status.resolved, Status.unresolved
    group = [
        trajectory("train.1.one", sample, status, **fields)
        for sample, (status, fields) in enumerate(
            [(solved, began), (failed, began), (failed, began), (solved, dropped), (solved, dropped)]
        )
    ]
    algo = dataclasses.replace(config.algo, normalize_std=False)
    assert set_advantages(group, algo) == 0 and degenerate_groups(group) == set()
    assert [member.advantage for member in group] == pytest.approx([2 / 3, -1 / 3, -1 / 3, 0.0, 0.0])
    equal = [dataclasses.replace(member, reward=float(bool(member.prefix_dropped))) for member in group]
    assert degenerate_groups(equal) == {"train.1.one"}


def test_records_of_old_have_no_prefix(trajectory):
    record = trajectory("train.1.one", 0).to_record()
    for name in [name for name in record if name.startswith("prefix") and name != "prefix_breaks"]:
        del record[name]
    assert Trajectory.from_record(record).beginning == ("", 0)
