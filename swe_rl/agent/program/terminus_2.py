"""This agent is Terminus 2 (of the package harbor), which types into a tmux, in the sandbox."""

from types import MappingProxyType

from swe_rl.agent.program.python_program import INSIDE, PythonProgramAgent
from swe_rl.agent.program.session import read_session

RUNNER = INSIDE / "terminus_run.py"


class Terminus2Agent(PythonProgramAgent):
    program = "terminus_2"
    script = RUNNER.name
    files = MappingProxyType({RUNNER.name: RUNNER.read_bytes()})
    read_turns = staticmethod(read_session)
