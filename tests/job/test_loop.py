"""The loop with a real trainer on a small random model; only the rollouts are made up."""

import asyncio
import dataclasses
import json
import os
import random
import signal
import threading
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from swe_rl.config.choices import AdvantageKind
from swe_rl.config.compose import compose
from swe_rl.config.known_models import CHECKPOINT_FACTS
from swe_rl.config.schema import ModelConfig
from swe_rl.dataset.instance import Instance
from swe_rl.engine.engine import EngineError, WeightSyncError
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.engine.update import EngineTurns
from swe_rl.errors import RunError, UserError
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.gateway.trace import Trace
from swe_rl.logger.jsonl import StepLog, read_evals, read_events, read_jsonl
from swe_rl.rollout.collect import Collected, RolloutError
from swe_rl.rollout.trajectory import Status, Trajectory
from swe_rl.run import rollouts as rollouts_module
from swe_rl.run.components import Components
from swe_rl.run.event_loop import run_uninterrupted
from swe_rl.run.learner import Learner, NoLearner
from swe_rl.run.loop import Run
from swe_rl.run.rollouts import Rollouts
from swe_rl.run.session import open_session
from swe_rl.trainer.critic import attach_value_head
from swe_rl.trainer.rank_trainer import RankTrainer
from swe_rl.trainer.ranks.group import TrainerGroup
from swe_rl.trainer.ranks.rank import RankSetup
from swe_rl.trainer.ranks.rows_file import RowsFile
from swe_rl.trainer.trainer import TrainerError
from tests.support.tiny_qwen3 import tiny_qwen3

VOCAB, N = 32, 4
SMALL = (
    "rollout.prompts_per_step=2",
    f"rollout.n={N}",
    "rollout.eval_n=1",
    "trainer.num_threads=1",
    "trainer.checkpoint_every_steps=2",
    "trainer.lr=0.01",
    "trainer.check_weights=false",  # the engine's tokens are made up
    "trainer.resume=auto",
)


STRICT = "rollout.max_infra_failure_rate=0.1"


class MadeUpRollouts:
    """Rewards and tokens that follow from a trajectory's name; `fail_at` is a (split, step) that breaks once."""

    watch = None

    def __init__(self, store, fail_at=None):
        self.store, self.fail_at, self.asked, self.attempted = store, fail_at, [], []

    def on_tail(self, active):
        """No router listens."""

    async def attempts(self, instance, name, temperature, retried, place=None):
        """Where groups flow. Some take longer than others."""
        self.attempted.append(str(name))
        try:
            await asyncio.sleep(0.002 * random.Random(str(name)).randrange(20))
            if self.fail_at and self.fail_at[:2] == (name.split, name.step) and name.sample == N - 1:
                raise self.fail_at[2]
        finally:
            place.give_back()
        one, trace = self._trajectory(name.instance_id, name.split, name.step, name.sample)
        one.num_calls = max(1, len(one.turns))
        self.store.append(trace)
        return one, None

    async def collect(self, instances, *, split, step, n, temperature, on_done=None, known=None, places=None):
        self.asked.append((split, step, [one.instance_id for one in instances]))
        collected = Collected([], [])
        for instance in instances:
            for sample in range(n):
                one, trace = self._trajectory(instance.instance_id, split, step, sample)
                self.store.append(trace)
                if self.fail_at and self.fail_at[:2] == (split, step):
                    raise self.fail_at[2]
                collected.trajectories.append(one)
                collected.results.append(None)
                if on_done:
                    on_done(one, None)
        return collected

    @staticmethod
    def _trajectory(name, split, step, sample):
        group = f"{split}.{step}.{name}"
        rng = random.Random(f"{group}.{sample}")
        status = Status.resolved if sample % 2 else Status.unresolved
        prompt = tuple(rng.randrange(VOCAB) for _ in range(4))
        sampled = tuple(rng.randrange(VOCAB) for _ in range(rng.randint(2, 6)))
        trace = Trace(
            f"{group}.{sample}.0", 0, 0, prompt, sampled, (-3.5,) * len(sampled), (step - 1,) * len(sampled), "stop"
        )
        one = Trajectory(trace.session_id, name, group, split, step, sample, 0, status, float(sample % 2), True, True)
        one.sampled_tokens = len(sampled)
        return one, trace


class Recorder(ScriptedEngine):
    """Remembers the weights that it was given."""

    def __init__(self):
        super().__init__(lambda prompt: [0])
        self.updates = []

    async def update_weights(self, weights, version):
        self.updates.append((version, float(sum(tensor.double().sum() for tensor in weights.values()))))


def instances(split):
    return [Instance(f"{split}{number}", "a/b", "c", "p", "", "", ("t",), ()) for number in range(5)]


def small_model():
    return tiny_qwen3(0, vocab_size=VOCAB, max_position_embeddings=32768, initializer_range=0.02)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def in_this_process(config, _):
    others = {"reference": small_model()} if config.algo.kl_coef else {}
    if config.algo.advantage is AdvantageKind.gae:
        others["critic"] = small_model()
        attach_value_head(others["critic"])
    if config.algo.advantage is AdvantageKind.teacher:
        others["teacher"] = tiny_qwen3(1, vocab_size=VOCAB, max_position_embeddings=32768, initializer_range=0.02)
    return RankTrainer(small_model(), config.trainer, config.algo, pad_token_id=0, **others)


def on_two_ranks(config, folder):
    small = small_model()
    small.save_pretrained(folder / "model")
    facts = {key: getattr(small.config, name) for key, name in CHECKPOINT_FACTS.items()}
    model = ModelConfig(path=str(folder / "model"), **facts)
    group = TrainerGroup(RankSetup(model, config.trainer, config.algo, 0, 1.0, 0, 2, 1, "", "cpu"), in_memory=True)
    group.start()
    return group


@pytest.fixture
def started(tmp_path):
    """`with started(steps=..., ...) as run`: one start of a run below `tmp_path`/outputs."""
    count = 0

    @contextmanager
    def start(*overrides, outputs="outputs", fail_at=None, trained=True, make=in_this_process):
        nonlocal count
        count += 1
        fresh = tmp_path / outputs / "train" / f"start{count}"
        fresh.mkdir(parents=True)
        config = compose([*SMALL, f"paths.outputs={tmp_path / outputs}", *overrides]).config
        with open_session(config, fresh, total_steps=config.trainer.steps, reports=False) as one:
            store, trainer = TraceStore(one.folder.traces_db), None
            try:
                trainer = make(config, tmp_path) if trained else None
                engine, rollouts = Recorder(), MadeUpRollouts(store, fail_at)
                env = SimpleNamespace(instances=instances, split_instances=lambda split: 5)
                left = []
                gateway = SimpleNamespace(syncing=nullcontext, group_left=lambda *group: left.append(group))
                parts = Components(env, [engine], gateway, store, None, rollouts)
                learner = Learner(config, one, parts, trainer) if trainer else NoLearner(config, one)
                loop = Run(config, one, parts, learner)
                if one.resumed:
                    loop.resume()
                yield SimpleNamespace(
                    loop=loop,
                    folder=one.folder,
                    store=store,
                    engine=engine,
                    rollouts=rollouts,
                    trainer=trainer,
                    left=left,
                    rollouts_alone=lambda: Rollouts(config, one, parts),
                )
            finally:
                store.close()
                if trainer is not None:
                    trainer.close()

    return start


def steps(run):
    return read_jsonl(run.folder.steps_jsonl)


def evals(run):
    return [event["step"] for event in read_evals(run.folder)]


def weights(run):
    return {name: tensor.clone() for name, tensor in run.trainer.policy_weights().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


async def test_a_whole_run(started):
    with started("trainer.steps=3", "trainer.eval_every_steps=2") as run:
        await run.loop.run()
        records = steps(run)
    assert [record["step"] for record in records] == [1, 2, 3]
    for record in records:
        assert record["num_trajectories"] == 2 * N and record["updates"] == 1
        assert record["weight_version"] == record["step"] and record["degenerate_groups"] == 0
        assert record["tokens_per_s"] == pytest.approx(2 * N * record["avg_response_length"] / record["generate_s"])
    assert evals(run) == [0, 2, 3]
    assert run.folder.checkpoint_steps() == [2, 3]  # every second one, and the last
    assert [version for version, _ in run.engine.updates] == [0, 1, 2, 3]
    assert len({total for _, total in run.engine.updates}) == 4
    assert len(read_jsonl(run.folder.trajectories(2))) == 2 * N
    assert len(read_jsonl(run.folder.eval_trajectories(2))) == 5


async def test_evaluations_may_begin_late(started):
    with started("trainer.steps=3", "trainer.eval_every_steps=1", "trainer.eval_from_step=2") as run:
        await run.loop.run()
    assert evals(run) == [2, 3]


async def test_what_grows_with_tokens_is_not_done_on_the_event_loop(started, monkeypatch):
    read, made, traces, rows = [], [], TraceStore.traces, rollouts_module.traced_rows

    def read_traces(store, session_id):
        read.append(threading.current_thread())
        return traces(store, session_id)

    def made_rows(*arguments):
        made.append(threading.current_thread())
        return rows(*arguments)

    monkeypatch.setattr(TraceStore, "traces", read_traces)
    monkeypatch.setattr(rollouts_module, "traced_rows", made_rows)
    with started("trainer.steps=1") as run:
        await run.loop.run()
    assert len(made) == 2 * N and len(read) > len(made)
    assert threading.current_thread() not in {*read, *made}


@pytest.mark.parametrize("kl", [False, True])
async def test_engines_sleep_from_the_end_of_the_rollouts_to_the_update(started, monkeypatch, kl):
    asked = []

    class Noted(EngineTurns):
        async def to_trainer(self):
            asked.append("asleep")

        async def to_engines(self):
            asked.append("may wake")

        def times(self):
            return {"sleep_s": 1.5, "wake_s": 2.5}

    def noting(what, function):
        def call(*given, **named):
            asked.append(what)
            return function(*given, **named)

        return call

    monkeypatch.setattr("swe_rl.run.learner.make_turns", lambda config, engines: Noted([]))
    in_reward = ("algo.kl_coef=0.1", "algo.kl_in=reward") if kl else ()
    with started("trainer.steps=2", *in_reward) as run:
        run.trainer.train_step = noting("train", run.trainer.train_step)
        run.trainer.sequence_kl = noting("kl", run.trainer.sequence_kl)
        run.engine.update_weights = noting("weights", run.engine.update_weights)
        run.rollouts.collect = noting("sample", run.rollouts.collect)
        await run.loop.run()
        events = read_events(run.folder.events_jsonl, "weights")
    turn = ["sample", "asleep", *(["kl"] if kl else []), "train", "may wake", "weights"]
    assert asked == ["may wake", "weights", "sample", *turn, *turn, "sample"]  # the first and last are evaluations
    assert all(event["sleep_s"] == 1.5 and event["wake_s"] == 2.5 for event in events)


async def test_an_evaluation_alone_measures_what_training_does(started):
    """As `job=eval` does it: the same rollouts, the same numbers, and the training split is not read."""
    with started("trainer.steps=1", "rollout.eval_n=2") as run:
        await run.loop.evaluate_when_due()
        [event] = read_evals(run.folder)
        run.store.delete(run.store.sessions())  # the made-up rollouts have the same names again
        alone, seen = run.rollouts_alone(), []
        _, numbers = await alone.measure(0, on_done=lambda trajectory, result: seen.append(trajectory.trajectory_id))
    assert run.rollouts.asked[0] == run.rollouts.asked[1]
    assert {**numbers, "eval_s": 0.0} == {key: event[key] for key in numbers} | {"eval_s": 0.0}
    assert len(seen) == 10 and "instances" not in vars(alone)


AHEAD = "trainer.max_staleness_steps=1"


async def test_sampled_a_step_ahead(started, monkeypatch):
    """Every step but the first trains on what the weights before last sampled; the order of instances is the same."""
    monkeypatch.setattr("swe_rl.check.rules.trainer.takes_turns", lambda config: False)
    with started("trainer.steps=4", "trainer.eval_every_steps=2", AHEAD, outputs="ahead") as run:
        served = []
        collect = run.rollouts.collect

        async def recorded(instances, *, split, step, **options):
            served.append((split, step, run.engine.updates[-1][0]))
            return await collect(instances, split=split, step=step, **options)

        run.rollouts.collect = recorded
        await run.loop.run()
        records, asked = steps(run), run.rollouts.asked
    assert [one for one in served if one[0] == "train"] == [("train", step, max(0, step - 2)) for step in range(1, 5)]
    assert [one[1:] for one in served if one[0] != "train"] == [(0, 0), (2, 2), (4, 4)]
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    assert [version for version, _ in run.engine.updates] == [0, 1, 2, 4]  # nothing is sampled with those of step 3
    assert all(record["step_s"] > 0 and record["updates"] == 1 for record in records)
    with started("trainer.steps=4", outputs="not_ahead") as other:
        await other.loop.run()
    assert [one for one in asked if one[0] == "train"] == [one for one in other.rollouts.asked if one[0] == "train"]


async def test_a_step_has_the_seconds_of_all_weights_that_were_sent_since_the_one_before(started, monkeypatch):
    """An evaluation's, too: the next rollouts find the engines up to date."""

    async def hand_over(learner, step):
        await asyncio.sleep(0.05)
        return await real(learner, step)

    real = Learner._hand_over
    monkeypatch.setattr(Learner, "_hand_over", hand_over)
    with started("trainer.steps=4", "trainer.eval_every_steps=1", AHEAD) as run:
        await run.loop.run()
        assert [version for version, _ in run.engine.updates] == [0, 1, 2, 3, 4]
        phases = read_events(run.folder.events_jsonl, "phase")
        took_s = [phase["took_s"] for phase in phases if phase["name"] == "sync_weights"]
        # The first weights are sent before the steps, the last ones after them.
        sent_s = [record["weight_sync_s"] for record in steps(run)]
        assert sent_s == pytest.approx([0.0, *took_s[1:4]], abs=0.02) and min(sent_s[1:]) > 0.05


async def test_a_run_ahead_is_resumed_at_the_step_that_was_learnt(started, monkeypatch):
    monkeypatch.setattr("swe_rl.check.rules.trainer.takes_turns", lambda config: False)
    options = ("trainer.steps=4", "trainer.checkpoint_every_steps=1", AHEAD)
    with pytest.raises(EngineError), started(*options, fail_at=("train", 3, EngineError("gone"))) as run:
        await run.loop.run()
    with started(*options) as again:
        assert again.loop.step == 2  # learnt to its end while step 3 was sampled
        await again.loop.run()
        assert [record["step"] for record in steps(again)] == [1, 2, 3, 4]
        resumed = [one for one in again.rollouts.asked if one[0] == "train"]
    assert [one[1] for one in resumed] == [3, 4]
    before = {one[1]: one[2] for one in run.rollouts.asked if one[0] == "train"}
    assert resumed[0][2] == before[3]  # the same instances again


async def test_without_a_trainer_nothing_is_learnt_or_saved(started):
    with started("trainer.steps=2", "job=rollout", trained=False) as run:
        await run.loop.one_step()
    [record] = steps(run)
    assert record["weight_version"] == 0 and "loss" not in record and run.folder.checkpoint_steps() == []


@pytest.mark.parametrize("instances", ["uniform", "informative"])
async def test_rollouts_go_on_after_the_last_step_that_is_written(started, instances):
    options = ("trainer.steps=4", "job=rollout", "name=train", f"rollout.instances={instances}")
    with started(*options, outputs="whole", trained=False) as whole:
        for _ in range(4):
            await whole.loop.one_step()
    with pytest.raises(RunError), started(*options, fail_at=("train", 3, RunError("x")), trained=False) as run:
        for _ in range(4):
            await run.loop.one_step()
    with started(*options, trained=False) as again:
        assert again.loop.step == 2 and again.folder.path == run.folder.path
        for _ in range(2):
            await again.loop.one_step()
    assert again.rollouts.asked == whole.rollouts.asked[2:]  # the same instances
    assert [record["step"] for record in steps(again)] == [1, 2, 3, 4]
    for key in ("statuses", "data_order", "avg_response_length"):
        assert [one[key] for one in steps(again)] == [one[key] for one in steps(whole)]


async def test_thinking_is_between_steps_and_recorded(started):
    with started("trainer.steps=2", "job=rollout", "job.think_s=0.05", trained=False) as run:
        await run.loop.one_step()
        await run.loop.one_step()
        log = run.folder.run_log.read_text()
    first, last = steps(run)
    assert 0.05 <= first["think_s"] < 0.5 and first["step_s"] >= first["generate_s"] + first["think_s"]
    assert "train_s" not in first and "think_s" not in last  # nothing comes after the last step
    assert log.count("Finished: 'think'") == 1


async def test_an_interruption_cuts_thinking_short_and_keeps_the_step(started):
    with started("trainer.steps=2", "job=rollout", "job.think_s=60", trained=False) as run:
        task = asyncio.create_task(run.loop.one_step())
        async with asyncio.timeout(10):
            while "Started: 'think'" not in run.folder.run_log.read_text():  # noqa: ASYNC110 - a file tells no events
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert run.loop.step == 1
    [record] = steps(run)
    assert record["think_s"] < 10 and len(read_jsonl(run.folder.trajectories(1))) == 2 * N


async def test_a_trainer_does_not_think(started):
    with started("trainer.steps=1", "job.think_s=60") as run:
        await asyncio.wait_for(run.loop.run(), 30)
        assert "think_s" not in steps(run)[0]


async def test_every_engine_s_failure_to_take_weights_is_told(started):
    with started("trainer.steps=1") as run:
        run.engine.update_weights = refuse
        with pytest.raises(WeightSyncError, match=r"weights of step 0 did not reach 1 of 1 engines \(scripted: no\)"):
            await run.loop.run()


async def refuse(weights, version):
    raise EngineError("no")


async def test_the_load_of_the_engines_is_in_the_events(started):
    with started("trainer.steps=1") as run:
        await run.loop.run()
        steps = run.folder.program_steps()
        samples = [event for step in steps for event in read_events(run.folder.programs(step), "engines")]
    assert samples and {one["step"] for one in samples} == {1}  # of steps, as programs are
    assert set(samples[0]["engines"]["scripted"]) == {"running", "waiting", "kv", "preemptions"}


async def test_failures_of_a_refill_count_against_the_whole_step(started, monkeypatch):
    """DAPO's filter asks one instance more, and half of its group fails: 2 of 12 trajectories, not 2 of 4."""
    asked = []

    def made(self, name, split, step, sample, plain=MadeUpRollouts._trajectory):
        one, trace = plain(name, split, step, sample)
        if split == "train":
            asked.append(name) if name not in asked else None
            if asked.index(name) == 1:
                one.reward = 1.0  # a group with nothing to compare: another instance is asked in its place
            elif asked.index(name) == 2 and sample < 2:
                one.status, one.reward, one.error = Status.infra_error, None, "no image"
        return one, trace

    monkeypatch.setattr(MadeUpRollouts, "_trajectory", made)
    dapo = ("algo.dynamic_sampling=resample", "algo.max_resample_rounds=1", "trainer.steps=1")
    with started(*dapo) as run:
        await run.loop.run()
        assert len(asked) == 3 and steps(run)[0]["resampled_groups"] == 1
    asked.clear()
    with pytest.raises(RolloutError, match="2 of 12 trajectories"), started(*dapo, STRICT, outputs="strict") as run:
        await run.loop.run()


async def test_the_sampler_goes_back_when_a_step_fails(started):
    with started("trainer.steps=2", fail_at=("train", 1, RunError("broke"))) as run:
        with pytest.raises(RunError, match="broke"):
            await run.loop.run()
        run.rollouts.fail_at = None
        run.store.delete(name for name in run.store.sessions() if name.startswith("train."))
        await run.loop.run()
        asked = [names for split, step, names in run.rollouts.asked if (split, step) == ("train", 1)]
        assert asked[0] == asked[1]
        assert evals(run) == [0, 2]  # the first one once


@pytest.mark.parametrize("instances", ["uniform", "informative"])
async def test_resume_computes_what_an_uninterrupted_run_would(started, instances):
    given = ("trainer.steps=5", "trainer.eval_every_steps=3", f"rollout.instances={instances}")
    with started(*given, outputs="whole") as whole:
        await whole.loop.run()
        expected = weights(whole)
    with (
        pytest.raises(RunError),
        started(*given, fail_at=("train", 4, RunError("killed"))) as first,
    ):
        await first.loop.run()
    assert [record["step"] for record in steps(first)] == [1, 2, 3] and first.folder.checkpoint_steps() == [2]
    with started(*given) as second:
        assert second.folder.path == first.folder.path and second.loop.step == 2
        assert [record["step"] for record in steps(second)] == [1, 2]
        assert not second.folder.trajectories(3).exists() and not second.folder.eval_trajectories(3).exists()
        names = second.store.sessions()
        assert names and not [name for name in names if int(name.split(".")[1]) > 2]
        await second.loop.run()
        assert same(weights(second), expected)
    ours, theirs = steps(second), steps(whole)
    chosen = ("foreseen_groups", "pass_rate_expected", "pass_rate_seen", "pass_rate_error")
    same_keys = ("step", "loss", "grad_norm", "entropy", "statuses", "avg_response_length", "signal_rate")
    assert (ours[-1].get("foreseen_groups") or 0) > 0 or instances == "uniform"
    for key in same_keys if instances == "uniform" else (*same_keys, *chosen):
        assert [record[key] for record in ours] == [record[key] for record in theirs]
    assert [one for one in second.rollouts.asked if one[0] == "train"] == [
        one for one in whole.rollouts.asked if one[0] == "train" and one[1] > 2
    ]
    assert evals(second) == [0, 3, 5]  # of the one after step 3 the second: the first was taken back
    assert second.store is not whole.store and len(read_jsonl(second.folder.eval_trajectories(3))) == 5


async def test_a_critic_is_resumed_with_its_policy(started):
    """Broken after its third step, which no checkpoint has."""
    given = ("trainer.steps=4", "algo=ppo", "algo.critic_epochs=2", "algo.critic_warmup_steps=1")
    with started(*given, outputs="whole") as whole:
        await whole.loop.run()
        expected = weights(whole)
        critic = {name: tensor.clone() for name, tensor in whole.trainer.critic.tensors().items()}
    with pytest.raises(RunError), started(*given, fail_at=("train", 4, RunError("killed"))) as first:
        await first.loop.run()
    assert first.folder.checkpoint_steps() == [2]
    with started(*given) as second:
        assert second.loop.step == 2
        await second.loop.run()
        assert same(weights(second), expected) and same(second.trainer.critic.tensors(), critic)
    ours, theirs = steps(second), steps(whole)
    for key in ("loss", "value_loss", "value_explained", "critic_grad_norm", "updates", "degenerate_groups"):
        assert [record[key] for record in ours] == [record[key] for record in theirs]
    assert [record["updates"] for record in ours] == [0, 1, 1, 1] and ours[-1]["critic_grad_norm"] > 0
    recorded = read_jsonl(second.folder.trajectories(4))
    assert {record["charged_reward"] for record in recorded} == {0.0, 1.0}
    assert {record["advantage"] for record in recorded} == {None}


@pytest.mark.parametrize("kept", ["all", "rows", "none"])
async def test_traces_go_once_no_resume_can_ask_for_them(started, kept):
    given = ("trainer.steps=6", "trainer.eval_every_steps=2", f"gateway.keep_traces={kept}")
    with started(*given, outputs="whole") as whole:
        await whole.loop.run()
        expected, sessions = weights(whole), whole.store.sessions()
        files = [whole.folder.rows(step) for step in range(1, 7)]
        assert bool(sessions) == (kept == "all") and all(file.exists() == (kept == "rows") for file in files)
    with pytest.raises(RunError), started(*given, fail_at=("train", 6, RunError("killed"))) as first:
        await first.loop.run()
    assert first.folder.checkpoint_steps()[-1] == 4
    with started(*given) as second:  # the newest checkpoint may turn out to be damaged: those before it need theirs
        left = {int(name.split(".")[1]) for name in second.store.sessions()}
        assert left == ({0, 1, 2, 3, 4} if kept == "all" else {3, 4}) and not second.folder.rows(5).exists()
        await second.loop.run()
        assert same(weights(second), expected) and second.store.sessions() == sessions
        if kept == "rows":
            ours, theirs = ([row for step in range(1, 7) for row in RowsFile(run.folder.rows(step)).rows()]
                            for run in (second, whole))  # fmt: skip
            assert ours == theirs and any(row.teaches for row in ours)


@pytest.mark.parametrize("moment", ["second mini-batch", "in the optimizer"])
async def test_a_step_that_runs_out_of_memory_is_done_again_as_a_whole(started, monkeypatch, moment):
    """Half of step 4 is in the weights then: it is not recorded, not saved, and gone with the process."""
    given = ("trainer.steps=5", "trainer.prompts_per_mini_batch=1")
    with started(*given, outputs="whole") as whole:
        await whole.loop.run()
        expected = weights(whole)

    def break_step(trainer):
        adamw, calls = trainer._optimizer._adamw, []
        step = adamw.step

        def full():
            calls.append(1)
            if moment == "in the optimizer":
                with torch.no_grad():
                    next(iter(trainer.model.parameters())).add_(1.0)
            elif len(calls) == 1:
                return step()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB")

        adamw.step = full

    train_step = RankTrainer.train_step

    def trained(trainer, rows, step):
        if step == 4:
            break_step(trainer)
        return train_step(trainer, rows, step)

    told = r"update of step 4: CUDA out of memory.*max_tokens_per_micro_batch"
    with monkeypatch.context() as patch, pytest.raises(TrainerError, match=told), started(*given) as first:
        patch.setattr(RankTrainer, "train_step", trained)
        await first.loop.run()
    assert [record["step"] for record in steps(first)] == [1, 2, 3] and first.folder.checkpoint_steps() == [2]
    with started(*given, "trainer.activation_checkpointing=true") as second:
        assert second.folder.path == first.folder.path and second.loop.step == 2
        await second.loop.run()
        assert same(weights(second), expected)
        assert [record["step"] for record in steps(second)] == [1, 2, 3, 4, 5]


async def test_resume_without_a_checkpoint_starts_over(started):
    with pytest.raises(RunError), started("trainer.steps=2", fail_at=("train", 2, RunError("killed"))) as first:
        await first.loop.run()
    with started("trainer.steps=2") as second:
        assert second.loop.step == 0 and steps(second) == []
        await second.loop.run()
        assert evals(second) == [0, 2] and [record["step"] for record in steps(second)] == [1, 2]


async def test_half_an_evaluation_leaves_nothing(started):
    with pytest.raises(RunError), started(fail_at=("eval-heldout", 0, RunError("killed"))) as first:
        await first.loop.run()
    with started() as second:
        assert second.store.sessions() == [] and not second.loop.is_evaluated()
        await second.loop.evaluate_when_due()
        assert second.loop.is_evaluated()
        assert [len(second.store.traces(name)) for name in second.store.sessions()] == [1] * 5


async def test_a_checkpoint_whose_step_was_not_recorded_is_not_taken(started):
    with pytest.raises(RunError), started("trainer.steps=6", fail_at=("train", 5, RunError("killed"))) as first:
        await first.loop.run()
    kept = [line for line in first.folder.steps_jsonl.read_text().splitlines() if json.loads(line)["step"] < 4]
    first.folder.steps_jsonl.write_text("".join(f"{line}\n" for line in kept))
    with started("trainer.steps=6") as second:
        assert first.folder.checkpoint_steps() == [2, 4] and second.loop.step == 2
        await second.loop.run()
        assert [record["step"] for record in steps(second)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_kill_around_a_checkpoint_loses_no_recorded_step(started, monkeypatch, moment):
    """With trainer.keep_checkpoints=1 the new one removes the old one: its step must be known by then."""
    keep = ("trainer.steps=6", "trainer.keep_checkpoints=1")
    save = Run.save

    def killed(loop):
        if loop.step < 4:
            return save(loop)
        if moment == "after":
            save(loop)
        raise RunError("killed")

    monkeypatch.setattr(Run, "save", killed)
    with pytest.raises(RunError), started(*keep) as first:
        await first.loop.run()
    monkeypatch.setattr(Run, "save", save)
    last = {"before": 2, "after": 4}[moment]
    assert first.folder.checkpoint_steps() == [last]
    with started(*keep) as second:
        assert second.loop.step == last
        await second.loop.run()
        assert [record["step"] for record in steps(second)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the record", "while it is written"])
async def test_a_kill_of_ranks_around_a_checkpoint_loses_no_recorded_step(started, monkeypatch, moment):
    """Ranks write behind the loop and remove the checkpoint before: by then the step is recorded."""
    keep = ("trainer.steps=5", "trainer.keep_checkpoints=1")
    save, append = Run.save, StepLog.append

    def killed():
        for pid in first.trainer.pids:
            os.kill(pid, signal.SIGKILL)
        raise RunError("killed")

    def unrecorded(steps, record):
        if record["step"] == 4:
            first.trainer.wait()  # whatever is being written comes to be there, and the one before goes
            killed()
        append(steps, record)

    def unwritten(loop):
        seconds = save(loop)
        return killed() if loop.step == 4 else seconds

    if moment == "before the record":
        monkeypatch.setattr(StepLog, "append", unrecorded)
    else:
        monkeypatch.setattr(Run, "save", unwritten)
    with pytest.raises(RunError, match="killed"), started(*keep, make=on_two_ranks) as first:
        await first.loop.run()
    monkeypatch.undo()
    recorded = [record["step"] for record in steps(first)]
    newest = max(step for step in first.folder.checkpoint_steps() if step in recorded)
    assert newest == 2 or moment == "while it is written"  # where the ranks may have been faster
    with started(*keep, make=on_two_ranks) as second:
        assert second.loop.step == newest
        await second.loop.run()
        assert [record["step"] for record in steps(second)] == [1, 2, 3, 4, 5]
        assert second.folder.checkpoint_steps() == [5]


async def test_a_step_that_is_not_recorded_gets_no_checkpoint(started, monkeypatch):
    """The run may end between a step's update and its record, and what it holds is saved then."""
    with started("trainer.steps=6", "trainer.keep_checkpoints=1") as run:
        await run.loop.one_step()
        await run.loop.one_step()

        async def lost(*_):
            raise WeightSyncError("the engines are gone", {})

        monkeypatch.setattr(Learner, "refresh", lost)
        with pytest.raises(WeightSyncError):
            await run.loop.one_step()
        assert run.loop.save() == 0.0 and run.folder.checkpoint_steps() == [2]
        assert (run.loop.step, run.loop.saved_step) == (3, 2)


async def test_checkpoints_are_never_passed_over_in_silence(started):
    with pytest.raises(RunError), started("trainer.steps=6", fail_at=("train", 5, RunError("killed"))) as first:
        await first.loop.run()
    first.folder.steps_jsonl.write_text("")
    told = r"step_000004 cannot be continued from .*no record.*trainer.resume=none"
    with pytest.raises(UserError, match=told), started("trainer.steps=6"):
        pass


async def test_save_is_for_the_last_step_and_once(started):
    with started("trainer.checkpoint_every_steps=0", "trainer.steps=9") as run:
        assert run.loop.save() == 0.0 == run.loop.saved_step  # nothing was done yet
        await run.loop.one_step()
        assert run.folder.checkpoint_steps() == [] and run.loop.save() > 0.0
        assert run.folder.checkpoint_steps() == [1] == [run.loop.saved_step] and run.loop.save() == 0.0


def test_more_prompts_than_instances(started):
    with pytest.raises(UserError, match=r"prompts_per_step=6.*only 5 instances"), started("rollout.prompts_per_step=6"):
        pass


async def test_an_interruption_waits_for_the_end_of_training(started):
    with started("trainer.steps=3") as run:
        finish, learning = run.loop._finish, asyncio.Event()

        async def slow(*arguments, **options):
            learning.set()
            await asyncio.sleep(0.05)
            await finish(*arguments, **options)

        run.loop._finish = slow
        task = asyncio.create_task(run.loop.one_step())
        await learning.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert run.loop.step == 1 and [record["step"] for record in steps(run)] == [1]
        assert run.engine.updates[-1][0] == 1


async def test_a_step_that_is_torn_off_gets_no_checkpoint(started):
    """Ctrl-C twice ends the event loop, but not the thread in which the weights are changing."""
    begun, goes_on = threading.Event(), threading.Event()
    with started("trainer.checkpoint_every_steps=0", "trainer.steps=9") as run:
        await run.loop.one_step()
        train_step = run.trainer.train_step

        def slow(*given):
            begun.set()
            assert goes_on.wait(30)
            return train_step(*given)

        run.trainer.train_step = slow
        step = asyncio.create_task(run.loop.one_step())
        await asyncio.to_thread(begun.wait, 30)
        try:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()  # as the end of a loop does
            await asyncio.wait({step})
            assert run.loop.save() == 0.0 == run.loop.saved_step
            assert run.folder.checkpoint_steps() == []
        finally:
            goes_on.set()


@pytest.mark.parametrize("interrupted", [False, True])
async def test_a_failure_of_the_uninterrupted_part_keeps_its_words_and_its_cause(interrupted):
    async def fails():
        await asyncio.sleep(0.01)
        raise RunError("no space") from OSError("disk")

    task = asyncio.create_task(run_uninterrupted(fails()))
    await asyncio.sleep(0)
    if interrupted:
        task.cancel()
    with pytest.raises(RunError, match="no space") as caught:
        await task
    assert isinstance(caught.value.__cause__, OSError)


async def test_an_update_is_timed_and_engines_that_disagree_stop_the_run(started):
    with started("trainer.steps=1") as run:
        await run.loop.run()
        events = read_events(run.folder.events_jsonl, "weights")
    assert [event["step"] for event in events] == [0, 1]
    assert all(event["sync_s"] >= event["gather_s"] + event["load_s"] for event in events)
    assert all(event["gather_s"] >= 0 and event["load_s"] >= 0 and "check_s" not in event for event in events)
    with started("trainer.steps=1", "trainer.check_weights=true", f"model.vocab_size={VOCAB}") as run:
        with pytest.raises(WeightSyncError, match=r"weights of step 0, 1 of 1 engines do not give .*scripted: "):
            await run.loop.run()
        assert steps(run) == []


async def test_a_trainer_that_ends_during_rollouts_ends_them(started, monkeypatch):
    monkeypatch.setattr("swe_rl.run.rollouts._LOOK_S", 0.01)
    cancelled = asyncio.Event()

    async def endless(*_, **__):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with started("trainer.steps=1") as run:
        run.rollouts.collect = endless
        run.trainer.failure = lambda: TrainerError("Rank 1 of 2 of the trainer failed")
        with pytest.raises(TrainerError, match="Rank 1 of 2"):
            await asyncio.wait_for(run.loop.one_step(), 10)
        assert cancelled.is_set() and run.loop.step == 0


def test_records_of_a_trajectory_are_plain_data():
    one, _ = MadeUpRollouts._trajectory("a", "train", 1, 1)
    assert json.loads(json.dumps(one.to_record()))["status"] == "resolved"
    assert dataclasses.asdict(one) == one.to_record()
