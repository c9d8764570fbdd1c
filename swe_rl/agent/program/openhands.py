"""This agent is OpenHands' (its software-agent SDK), in the sandbox."""

from types import MappingProxyType

from swe_rl.agent.program.python_program import INSIDE, PythonProgramAgent
from swe_rl.agent.program.session import read_session

RUNNER = INSIDE / "openhands_run.py"


class OpenHandsAgent(PythonProgramAgent):
    program = "openhands"
    script = RUNNER.name
    files = MappingProxyType({RUNNER.name: RUNNER.read_bytes()})
    read_turns = staticmethod(read_session)
