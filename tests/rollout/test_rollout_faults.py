"""A step of 16 groups in which things break: each trajectory ends with the right status, reward and mask.

Real parts: instances, sandboxes with git and pytest, gateway, router, rows. The engine follows a script, and sandboxes
break where the plan says so.
"""

import random
from collections import Counter

import pytest

from swe_rl.agent.client import ChatClient
from swe_rl.agent.make import make_agent
from swe_rl.config.compose import compose
from swe_rl.engine.engine import EngineError
from swe_rl.engine.scripted import ScriptedEngine
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.gateway.server import Gateway
from swe_rl.gateway.store.traces import TraceStore
from swe_rl.model.chat import ChatRenderer
from swe_rl.model.load import load_tokenizer
from swe_rl.rollout.attempt import Attempter
from swe_rl.rollout.batch import count_tokens, set_advantages
from swe_rl.rollout.collect import Collector, RolloutError, require_few_failures
from swe_rl.rollout.rows import traced_rows
from swe_rl.rollout.trajectory import Status
from swe_rl.router.make import make_router
from swe_rl.sandbox.provider import make_provider
from tests.support.faulty_sandboxes import Fault, FaultyProvider

GROUPS, SAMPLES = 16, 2
# Group number -> what happens to its first sample; the second one always goes well, unless the group as a whole is hit.
RIGHT = (Status.resolved, 1.0)
WRONG = (Status.unresolved, 0.0)
BROKEN = (Status.infra_error, None)
EXPECTED = {
    "image_missing_once": RIGHT,
    "image_missing": BROKEN,
    "killed_once": RIGHT,
    "killed": BROKEN,
    "left_behind_once": RIGHT,
    "left_behind": BROKEN,
    "disk_full_in_grading_once": RIGHT,
    "disk_full_in_grading": (Status.grade_error, None),
    "hung_tests_in_grading_once": RIGHT,
    "hung_tests_in_grading": (Status.grade_error, None),
    "hung_command_once": RIGHT,
    "hung_commands": (Status.agent_timeout, 0.0),
    "malformed_output": (Status.format_errors, 0.0),
    "engine_refuses": (Status.engine_error, None),
    "wrong_patch": WRONG,
    "nothing_done": (Status.empty_patch, 0.0),
}
OF_THE_GROUP = {
    "disk_full_in_grading",
    "hung_tests_in_grading",
}  # a grading belongs to instance and patch, not to a sample
FIX = "```bash\ngit apply - <<'END'\n{patch}END\n```"
SUBMIT, PROSE = "```bash\nsubmit\n```", "I would rather talk."
BREAK_IT = "```bash\necho 'raise ValueError' >> $(git ls-files '*/__init__.py' | head -1)\n```"


class Script:
    """Says what a group's policy would say; the session's name tells group and sample."""

    def __init__(self, renderer, instances, kinds):
        self._renderer, self._kinds = renderer, kinds
        self._patches = {one.instance_id: one.patch for one in instances}
        self._turns = Counter()

    def reply(self, session, prompt_ids):
        _, _, instance_id, sample, _ = session.split(".")
        turn, self._turns[session] = self._turns[session], self._turns[session] + 1
        kind = self._kinds.get(instance_id) if sample == "0" else None
        if kind == "engine_refuses":
            raise EngineError("the engine refuses (injected)")
        fix = FIX.format(patch=self._patches[instance_id])
        said = {
            "malformed_output": [PROSE],
            "hung_commands": ["```bash\nsleep 60\n```"],
            "wrong_patch": [BREAK_IT, SUBMIT],
            "nothing_done": [SUBMIT],
            "hung_command_once": [fix, fix, SUBMIT],
        }.get(kind, [fix, SUBMIT])
        return self._renderer.reply({"role": "assistant", "content": said[min(turn, len(said) - 1)]})


class SessionEngine(ScriptedEngine):
    """A scripted engine whose replies depend on the session too."""

    def __init__(self, script, **options):
        super().__init__(lambda prompt_ids: self._said, **options)
        self._script, self._said = script, ()

    async def generate(self, prompt_ids, params, *, request_id, session_id=None):
        self._said = self._script(session_id, prompt_ids)
        return await super().generate(prompt_ids, params, request_id=request_id, session_id=session_id)


class Breaking:
    """The plan of faults: `once` for the first sandbox of an owner, else for all of them."""

    def __init__(self, kinds):
        self._kinds, self._seen = kinds, Counter()

    def __call__(self, owner):
        grading = owner.startswith("grade-")
        found = [(name, kind) for name, kind in self._kinds.items() if name in owner]
        if not found or (not grading and f".{found[0][0]}.0." not in owner):
            return None
        name, kind = found[0]
        self._seen[(name, grading)] += 1
        if kind.endswith("_once") and self._seen[(name, grading)] > 1:
            return None
        fault = kind.removesuffix("_once")
        if grading != fault.endswith("_in_grading"):
            return None
        fault = fault.removesuffix("_in_grading")
        return Fault(fault) if fault in set(Fault) else None


@pytest.fixture
async def step(tmp_path):
    """Runs a step of `groups` groups; returns trajectories, traces, collected and the provider of faults."""

    async def run(kinds_in_order, *changes, groups=GROUPS):
        config = compose(
            ["rollout.agent_timeout_s=8", "rollout.grade_timeout_s=10", "rollout.command_timeout_s=3",
             "rollout.concurrency=8", "rollout.max_infra_failure_rate=0.5", "engine.max_model_len=4096",
             "rollout.max_turn_tokens=1500", "rollout.max_trajectory_tokens=4096", "rollout.max_prompt_tokens=2048",
             "env.cache_verdicts=false", *changes]
        ).config  # fmt: skip
        env = BugsEnv(config.env, tmp_path / "workspaces")
        instances = sorted(env.instances("train"), key=lambda one: len(one.patch))[:groups]
        kinds = {one.instance_id: kind for one, kind in zip(instances, kinds_in_order, strict=False)}
        renderer = ChatRenderer(load_tokenizer(config.model), template="qwen_plain")
        engine = SessionEngine(Script(renderer, instances, kinds).reply)
        store = TraceStore(tmp_path / "traces.db")
        gateway = Gateway(
            [engine], make_router(config.router, [engine]), renderer, store,
            model_name="tiny", config=config.gateway, max_model_len=4096,
        )  # fmt: skip
        await gateway.start()
        inner = make_provider(config.sandbox, tmp_path / "scratch", lambda text: None)
        provider, client = FaultyProvider(inner, Breaking(kinds)), ChatClient(rng=random.Random(0), max_retries=0)
        agent = make_agent(config.agent, config.rollout, client)
        attempter = Attempter(env, agent, gateway, provider, config.rollout, config.env, model_name="tiny")
        try:
            collected = await Collector(attempter, config.rollout, 0).collect(
                instances, split="train", step=1, n=SAMPLES, temperature=1.0
            )
            require_few_failures(collected.trajectories, config.rollout)
            await store.flush()
            traces = [store.traces(one.trajectory_id) for one in collected.trajectories]
            for one, own in zip(collected.trajectories, traces, strict=True):
                count_tokens(one, own)
            set_advantages(collected.trajectories, config.algo)
            rows = [traced_rows(one, own) for one, own in zip(collected.trajectories, traces, strict=True)]
        finally:
            for part in (client, provider, gateway):
                await part.close()
            store.close()
        assert not list((tmp_path / "scratch").glob("*/*")), "a working copy was left"
        return kinds, collected, rows, provider

    return run


@pytest.mark.slow
async def test_sixteen_groups_with_faults(step):
    kinds, collected, rows, provider = await step(list(EXPECTED))
    assert len(collected.trajectories) == GROUPS * SAMPLES
    for one, own in zip(collected.trajectories, rows, strict=True):
        kind = kinds.get(one.instance_id) if one.sample == 0 or kinds.get(one.instance_id) in OF_THE_GROUP else None
        status, reward = EXPECTED[kind] if kind else RIGHT
        assert (one.status, one.reward) == (status, reward), (kind, one.sample, one.error, one.turns)
        counted = reward is not None and status is not Status.agent_timeout
        assert (one.trained, one.in_baseline) == (counted, counted), kind
        assert bool(one.error) == (reward is None), kind
        assert all((row.trained_tokens > 0) == counted for row in own), kind
    assert set(provider.hits) == set(Fault)
    retried = Counter(kinds[one.instance_id] for one in collected.retried)
    assert retried["image_missing_once"] == retried["killed_once"] == retried["left_behind_once"] == 1
    for kind in ("image_missing", "killed", "left_behind", "engine_refuses"):
        assert retried[kind] == 2  # rollout.infra_retries


@pytest.mark.slow
async def test_a_broken_member_moves_nobody_elses_advantage(step):
    kinds, collected, rows, _ = await step(["killed", "wrong_patch"], groups=2)
    by_name = {(kinds.get(one.instance_id), one.sample): one for one in collected.trajectories}
    assert by_name["killed", 0].advantage in (None, 0.0) and by_name["killed", 1].advantage == 0.0
    assert by_name["wrong_patch", 0].advantage == pytest.approx(-by_name["wrong_patch", 1].advantage)
    assert by_name["wrong_patch", 1].advantage > 0


async def test_too_much_of_it_stops_the_run_and_names_the_instances(step):
    with pytest.raises(RolloutError, match=r"infrastructure.*max_infra_failure_rate=0 .*died"):
        await step(["killed"], "rollout.max_infra_failure_rate=0", groups=1)


def test_every_status_that_a_fault_can_cause_is_played():
    assert {status for status, _ in EXPECTED.values()} == set(Status) - {
        Status.step_limit,
        Status.context_overflow,
        Status.agent_crashed,
        Status.request_refused,  # a request's form is no fault: tests/rollout/test_attempt.py
    }
