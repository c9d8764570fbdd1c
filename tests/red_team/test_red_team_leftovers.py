"""What an agent leaves in its tree to break what comes after it: the attempt is paid or not, and never infrastructure.

The whole way is played, from the agent's sandbox to the reward: the patch is taken, graded and paid for.
"""

import dataclasses
import sys
from pathlib import Path

import pytest

from swe_rl.agent.scripted import ScriptedAgent
from swe_rl.config.choices import SandboxKind
from swe_rl.config.compose import compose
from swe_rl.config.schema import SandboxConfig
from swe_rl.env.grading.pytest import grade_by_pytest
from swe_rl.gateway.session import SessionSettings
from swe_rl.rollout.attempt import Attempter
from swe_rl.rollout.trajectory import Order, Status, TrajectoryId
from swe_rl.sandbox.provider import make_provider
from swe_rl.sandbox.sandbox import Workspace
from tests.rollout.test_attempt import FakeGateway

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
FIX = "sed -i 's/a - b/a + b/' victim/__init__.py"
# Each of these comes after the right fix. Those that only litter the tree cost nothing.
LITTER = {
    "pipes": "mkfifo tests/test_new.py victim/pipe .gitattributes; rm conftest.py; mkfifo conftest.py",
    "sockets": "python3 -c \"import socket; [socket.socket(1).bind(n) for n in ('tests/s.py', 'victim/s')]\"",
    "a pipe for a test": "rm tests/test_victim.py; mkfifo tests/test_victim.py .gitignore",
    "pipes of git": "rm .git/index; mkfifo .git/index; mkdir -p .git/info; mkfifo .git/info/grafts",
    "a folder for a test": "mkdir -p victim/inner/tests/test_more.py; touch victim/inner/tests/test_more.py/x",
    "odd names": "touch -- -rf 'a\nb' \"$(printf '\\377')\"; mkdir n; mkfifo n/.git",
}
BREAKS = {
    "a file where tests want a folder": "echo x > victim/inner",
    "tests are a link to themselves": "rm -rf tests; ln -s tests tests",
    "no repository": "rm -rf .git; mkfifo .git",
    "no objects": "rm -rf .git/objects; ln -s /dev/zero .git/objects",
    "no tree": 'rm -rf "$PWD"/* "$PWD"/.[!.]*',
    "no rights": "chmod 000 tests .git victim .",
}
QUICK = ("pipes", "no rights")


class VictimEnv:
    name = "victim"

    def __init__(self, victim, image):
        self._workspace = Workspace(path=victim.folder, image=image)

    def workspace(self, instance):
        return self._workspace

    def prompt(self, instance):
        return instance.problem_statement

    async def grade(self, instance, patch, sandboxes, timeout_s):
        return await grade_by_pytest(instance, patch, self._workspace, sandboxes, timeout_s)


@pytest.fixture
def left_by(victim):
    """The trajectory of an agent that fixes the code and then runs a command."""
    tests = {"tests/test_victim.py": "from victim import add\n\n\ndef test_twice():\n    pass\n"}
    tests["tests/test_victim.py"] += "\n\ndef test_add():\n    assert add(1, 2) == 3\n"
    tests["victim/inner/tests/test_more.py"] = "def test_more():\n    pass\n"
    instance = dataclasses.replace(victim.instance, test_patch=victim.patch(tests))

    async def run(command, sandboxes, image=None):
        config = compose([]).config
        rollout = dataclasses.replace(config.rollout, command_timeout_s=20.0, grade_timeout_s=60.0)
        attempter = Attempter(
            VictimEnv(victim, image),
            ScriptedAgent([FIX, command]),
            FakeGateway(),
            sandboxes,
            rollout,
            config.env,
            model_name="m",
        )
        order = Order(instance, TrajectoryId("train", 1, "one", 0, 0), SessionSettings(96, 1024))
        return (await attempter.run(order))[0]

    return run


def lane_of(name):
    return [] if name in QUICK else [pytest.mark.slow]


def check(trajectory, name):
    if name in LITTER:
        assert trajectory.status is Status.resolved and trajectory.reward == 1.0, trajectory.error
    else:
        assert trajectory.status in (Status.unresolved, Status.empty_patch) and trajectory.reward == 0.0, trajectory


@pytest.mark.parametrize("name", [pytest.param(name, marks=lane_of(name)) for name in (*LITTER, *BREAKS)])
async def test_what_is_left_in_a_tree_is_paid_or_not(left_by, sandboxes, name):
    check(await left_by((LITTER | BREAKS)[name], sandboxes), name)


@pytest.mark.docker
@pytest.mark.parametrize("kind", [SandboxKind.docker, SandboxKind.podman])
async def test_what_root_leaves_in_a_container_is_paid_or_not(left_by, tmp_path, kind):
    from tests.sandbox import host_image
    from tests.sandbox.engines import NoEngineError, engine

    try:
        with engine(kind.value) as address:
            config = SandboxConfig(kind=kind, host=address, mounts=host_image.mounts())
            provider = make_provider(config, tmp_path / "scratch", print)
            try:
                for name, command in (LITTER | BREAKS).items():
                    if name != "no rights":  # root has them all the same
                        check(await left_by(command, provider, host_image.IMAGE), name)
            finally:
                await provider.close()
    except NoEngineError as error:
        pytest.skip(str(error))
