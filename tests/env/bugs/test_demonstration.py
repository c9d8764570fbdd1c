"""A demonstration is what `agent=bash` would have seen, to the last byte: the commands are run for real."""

import random
import re

import pytest

from swe_rl.agent.agent import Assignment, Exit, Task
from swe_rl.agent.bash import BashAgent
from swe_rl.agent.client import ChatReply
from swe_rl.agent.observation import format_observation
from swe_rl.agent.prompts import system_prompt
from swe_rl.config.compose import compose
from swe_rl.config.schema import EnvConfig, SandboxConfig
from swe_rl.env.bugs.demonstration import Demonstrator
from swe_rl.env.bugs.edit import look_command
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.bugs.workspace import PACKAGES
from swe_rl.imitation.demonstrations import demonstrate_conversation
from swe_rl.sandbox.process.provider import ProcessProvider
from swe_rl.sandbox.sandbox import Workspace


@pytest.fixture(scope="module")
def demonstrator():
    return Demonstrator(PACKAGES / "train", 0.5)


@pytest.fixture
async def sandboxes(tmp_path):
    provider = ProcessProvider(SandboxConfig(), tmp_path / "scratch", warn=print)
    yield provider
    await provider.close()


class Replays:
    """A model that says the demonstration's replies."""

    def __init__(self, replies):
        self._replies = iter(replies)

    async def complete(self, messages, *, base_url, model, tools=(), segment=None):
        said = f"```bash\n{next(self._replies)}\n```"
        return ChatReply(said, "stop", message={"role": "assistant", "content": said})


async def test_the_conversation_is_the_agents(demonstrator, sandboxes, tmp_path):
    config = compose([]).config
    prompt, kinds = system_prompt(config.agent.system_prompt), set()
    for number in range(10):
        one = demonstrator.demonstrate(random.Random(number))
        kinds.add(one.kind)
        path = tmp_path / f"scene{number}" / one.replies[0].split()[-1]
        path.parent.mkdir(parents=True)
        above, below = "def first_of_all():\n    return None\n\n\n", "\n\ndef last_of_all():\n    return 1\n"
        path.write_text(above + one.observations[0] + below)
        sandbox = await sandboxes.create(Workspace(path=tmp_path / f"scene{number}"), owner="demonstration")
        agent = BashAgent(config.agent, max_turns=6, command_timeout_s=10.0, client=Replays(one.replies))
        task = Task("one", one.statement)
        result = await agent.run(Assignment(task, base_url="", model="", sandbox=sandbox, timeout_s=60.0))
        assert result.exit is Exit.SUBMITTED
        assert result.messages == demonstrate_conversation(one, prompt)
        changed = (await sandbox.read_file(one.replies[0].split()[-1])).decode()
        assert (changed != path.read_text()) == (one.kind != "no_edit"), one
        assert changed.startswith(above) and changed.endswith(below)
        await sandbox.close()
    assert {"right", "wrong_edit"} <= kinds


async def test_the_look_command_in_a_real_workspace(sandboxes, tmp_path):
    env = BugsEnv(EnvConfig(), tmp_path / "cache")
    for one in (*env.instances("train")[:3], *env.instances("heldout")[:3]):
        path = one.patch.split()[2].removeprefix("a/")
        function = re.search(rf"(\w+) in {re.escape(path)}", one.problem_statement)[1]
        workspace = env.workspace(one)
        sandbox = await sandboxes.create(workspace, owner="look")
        result = await sandbox.exec(look_command(function, path), timeout_s=10.0)
        source = (workspace.path / path).read_text()
        start = source.index(f"def {function}(")
        start = source.rfind("\n", 0, start) + 1
        shown = source[start:].split("\n\n")[0].rstrip("\n") + "\n"
        assert format_observation(result, 8000).rstrip("\n") + "\n" == shown
        [buggy] = [line[1:] for line in one.patch.splitlines() if line.startswith("-") and not line.startswith("---")]
        assert f"{buggy}\n" in shown
        await sandbox.close()


def test_the_same_generator_gives_the_same_demonstrations(demonstrator):
    def some(seed):
        rng = random.Random(seed)
        return [demonstrator.demonstrate(rng) for _ in range(5)]

    assert some(1) == some(1) != some(2)


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_as_often_right_as_asked(right):
    rng, demonstrator = random.Random(0), Demonstrator(PACKAGES / "train", right)
    kinds = [demonstrator.demonstrate(rng).kind for _ in range(300)]
    assert kinds.count("right") / 300 == pytest.approx(right, abs=0.1)


def test_held_out_packages_are_never_read(monkeypatch):
    from pathlib import Path

    read, original = [], Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, *a, **k: read.append(path) or original(path, *a, **k))
    Demonstrator(PACKAGES / "train", 0.5)
    assert len(read) > 10 and not [path for path in read if "heldout" in path.parts]
