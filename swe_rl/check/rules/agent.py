"""Rules of the agents check that tools, words, program and environment fit the agent, and that the job can use it.

Invariants:
- Names and sizes alone decide. Nothing of an agent's own package is imported.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from swe_rl.check.findings import Finding, Host, error, error_if, rule_about, rule_between
from swe_rl.config.choices import Capture, CompactionKind, ExtensionKind, SandboxKind
from swe_rl.config.keys import nearest_words
from swe_rl.config.parts import AGENTS_WITHOUT_MODEL, Part, started_parts
from swe_rl.config.schema import AgentConfig, Config
from swe_rl.dataset.predictions import KEY as PREDICTIONS
from swe_rl.dataset.predictions import PredictionsError, parse_predictions
from swe_rl.dataset.server_address import NEMO_GYM_SERVER, OPENENV_SERVER, ServerKind
from swe_rl.extension.find import is_foreign


@dataclass(frozen=True, slots=True)
class PlayedPair:
    """An environment that brings an agent of its own (`env/played.py`). Both have the same `name`."""

    name: str
    env: str  # The class of the environment.
    agent: str  # The class of the agent.
    env_words: str  # Why no other agent will do.
    plays: str  # What the agent plays.
    dataset: str  # An example of env.dataset.
    server: ServerKind | None = None  # The servers that it plays at, if any.


VERIFIERS = PlayedPair(
    name="verifiers",
    env="swe_rl.env.verifiers.VerifiersEnv",
    agent="swe_rl.agent.verifiers.VerifiersAgent",
    env_words="env=verifiers leads the conversation itself and scores it, and only agent=verifiers lets it",
    plays="the rollouts of a verifiers environment",
    dataset="PACKAGE",
)
OPENENV = PlayedPair(
    name="openenv",
    env="swe_rl.env.openenv.env.OpenEnvEnv",
    agent="swe_rl.agent.openenv.agent.OpenEnvAgent",
    env_words="episodes of an OpenEnv server have no repository to work in, and only agent=openenv plays them",
    plays="the episodes of an OpenEnv server",
    dataset="http://127.0.0.1:8000",
    server=OPENENV_SERVER,
)
NEMO_GYM = PlayedPair(
    name="nemo_gym",
    env="swe_rl.env.nemo_gym.env.NemoGymEnv",
    agent="swe_rl.agent.nemo_gym.agent.NemoGymAgent",
    env_words="tasks of a resource server have no repository to work in, and only agent=nemo_gym plays them",
    plays="the tasks of a resource server of NeMo-Gym",
    dataset="ROWS.jsonl env.params.server=ADDRESS",
    server=NEMO_GYM_SERVER,
)
PAIRS = (VERIFIERS, OPENENV, NEMO_GYM)
AGENT_TOOLS = {
    "bash": ("bash",),
    "mini_swe": ("bash", "bash_calls"),
    "qwen_code": ("own",),
    "claude_code": ("own",),
    "codex": ("own",),
    "opencode": ("own",),
    "openhands": ("own",),
    "terminus_2": ("own",),
    "kimi_cli": ("own",),
    "command": ("own",),
    "pdb": ("full", "rewrite_only", "debug_after_5"),
    "gold": ("none",),
    "demonstrate": ("none",),
    "noop": ("none",),
    "scripted": ("none",),
    "predictions": ("none",),
    "verifiers": ("none",),
    "openenv": ("none",),
    "nemo_gym": ("none",),
}
AGENT_PROMPTS = {
    "bash": ("standard", "short"),
    "demonstrate": ("standard", "short"),
    "mini_swe": ("mini_swe", "standard", "short"),
    "pdb": ("pdb_standard", "pdb_short"),
}  # the other agents have none
_SHORT_PROMPTS = {"mini_swe": "short", "pdb": "pdb_short"}
# These run inside the sandbox.
PROGRAMS = (
    "qwen_code", "claude_code", "codex", "opencode", "openhands", "terminus_2", "kimi_cli", "command",
)  # fmt: skip
# These hold their conversation themselves, so that it can be made shorter between two turns.
COMPACTED = ("bash", "mini_swe", "pdb")
# These give their model a tool that hands a part of the task to a sub-agent.
DELEGATING = ("bash",)
EXITS = ("submitted", "step_limit", "context_overflow", "agent_timeout", "format_errors", "agent_crashed")
# These count the agent's own words and tools before any task, at 4.5 characters a token. No tokenizer of the models
# makes fewer.
_OWN_TOKENS = {
    "mini_swe": 1400,
    "pdb_standard": 900,
    "qwen_code": 14000,
    "claude_code": 3000,
    "codex": 4500,
    "opencode": 6500,
    "openhands": 7000,
    "terminus_2": 1000,
    "kimi_cli": 7000,
}  # the keys are of agent.system_prompt, or of agent.name
_BARE_TOKENS = 7000  # `qwen --bare` has so few
# Agents that are libraries of a Python of their own: the package, its first Python, and a folder for it.
_LIBRARIES = {
    "openhands": ("openhands-sdk", "3.12", "with openhands-sdk and openhands-tools"),
    "terminus_2": ("harbor", "3.12", "with harbor"),
    "kimi_cli": ("kimi-cli", "3.13", "with kimi-cli<1.52"),
}
_ADDRESS_SPACE_GB = {
    "qwen_code": 3.0,
    "claude_code": 4.0,
    "opencode": 12.0,
}  # Node and Bun reserve so much, and use a tenth of it


@rule_about(Part.rollouts)
def agent_tools(config: Config, _: Host) -> Iterator[Finding]:
    agent = config.agent
    for key, value, known in (
        ("tools", agent.tools, AGENT_TOOLS.get(agent.name)),
        ("system_prompt", agent.system_prompt, AGENT_PROMPTS.get(agent.name)),
    ):
        if known and value not in known:
            words = f"agent={agent.name} has {', '.join(known)}"
            yield error(
                "agent_tools", f"agent.{key}", words, f"agent.{key}={(nearest_words(value, known) or known)[0]}"
            )


@rule_about(Part.rollouts)
def agent_program(config: Config, _: Host) -> Iterator[Finding]:
    agent = config.agent
    if agent.name not in PROGRAMS:
        return
    if not agent.command:
        words = f"agent={agent.name} needs to know which program to start"
        yield error("agent_tools", "agent.command", words, "agent.command='PROGRAM ARGUMENTS'")
    for status, exit_name in agent.exit_codes.items():
        if exit_name not in EXITS or not status.isdigit():
            words = f"an exit status has a number and means one of {', '.join(EXITS)}"
            number = status if status.isdigit() else "53"
            yield error("agent_exit", f"agent.exit_codes.{status}", words, f"++agent.exit_codes.{number}=step_limit")
    if config.rollout.capture == Capture.retokenize:
        words = f"agent={agent.name} keeps its conversation to itself: there are no messages to render"
        yield error("agent_capture", "rollout.capture", words, "rollout.capture=traced")
    sandbox = config.sandbox
    space_gb = _ADDRESS_SPACE_GB.get(agent.name, 0.0)
    if sandbox.kind == SandboxKind.process and sandbox.memory_gb < space_gb:
        words = f"agent={agent.name} needs {space_gb:g} GB of address space, which is what sandbox.kind=process limits"
        yield error("agent_memory", "sandbox.memory_gb", words, f"sandbox.memory_gb={space_gb + 1:g}")


@rule_about(Part.rollouts)
def agent_sdk(config: Config, host: Host) -> Iterator[Finding]:
    """Finds that an agent's own Python is missing where commands are processes of this machine.

    What an image holds shows at the first attempt.
    """
    agent = config.agent
    sandbox = config.sandbox
    here = not (host.elsewhere or host.submitted or config.hardware.partition is not None)
    if agent.name not in _LIBRARIES or sandbox.kind != SandboxKind.process or not here:
        return
    package, python, packages = _LIBRARIES[agent.name]
    if agent.program_path is None:
        missing = ""
        if host.version(package) is None:
            missing = f"the Python of this environment has no {package}"
    else:
        looked = [f"{folder.rstrip('/')}/python3" for folder in agent.program_path.split(":")]
        missing = ""
        if not any(host.file_exists(_mount_source(path, sandbox.mounts)) for path in looked):
            missing = f"no {looked[0]}"
    if missing:
        yield error(
            "agent_sdk",
            "agent.program_path",
            f"agent={agent.name} needs a Python (from {python} on) {packages} in the sandbox: {missing}",
            f"agent.program_path=/opt/{agent.name}/bin sandbox.mounts=[/opt/{agent.name}:/opt/{agent.name}], "
            "see docs/engineering/agents_in_sandbox.md",
        )


def _mount_source(path: str, mounts: tuple[str, ...]) -> str:
    """Returns the path on this machine of what is at `path` of the sandbox."""
    for source, target, *_ in (mount.split(":") for mount in mounts if mount.count(":")):
        if path.startswith(f"{target}/"):
            return source + path[len(target) :]
    return path


@rule_about(Part.rollouts)
def agent_predictions(config: Config, host: Host) -> Iterator[Finding]:
    """Refuses a predictions file that job=eval could not grade once. It is read as the job will read it."""
    agent = config.agent
    if agent.name != "predictions":
        if agent.predictions is not None:
            words = f"agent={agent.name} reads no predictions file"
            yield error("agent_predictions", PREDICTIONS, words, "agent.predictions=null, or agent=predictions")
        return
    if Part.evaluation not in started_parts(config) or Part.steps in started_parts(config):
        words = "a predictions file is graded against the instances of env.eval_split, which job=eval reads"
        yield error("agent_predictions", "job.name", words, "job=eval")
    if config.rollout.eval_n != 1:
        words = "a predictions file has one patch for each instance"
        yield error("agent_predictions", "rollout.eval_n", words, "rollout.eval_n=1")
    if agent.predictions is None:
        words = "agent=predictions needs the file whose patches are graded"
        yield error("agent_predictions", PREDICTIONS, words, "agent.predictions=preds.json")
    elif not (host.elsewhere or host.submitted):
        problem = _predictions_problem(agent.predictions, host.read_text(agent.predictions))
        if problem:
            yield error("agent_predictions", PREDICTIONS, problem, "agent.predictions=preds.json")


def _predictions_problem(path: str, text: str | None) -> str:
    """Returns why the file cannot be graded, or nothing."""
    if text is None:
        return "there is no such file, or it is not UTF-8 text"
    try:
        parse_predictions(text, path)
    except PredictionsError as problem:
        return str(problem)
    return ""


@rule_about(Part.trainer)
def agent_samples(config: Config, _: Host) -> Iterator[Finding]:
    if config.agent.name in AGENTS_WITHOUT_MODEL:
        words = f"agent={config.agent.name} asks no model: there is nothing to train on"
        yield error("agent_samples", "agent.name", words, "job=rollout or job=eval")


def own_tokens(agent: AgentConfig) -> int:
    """Returns at least how many tokens the agent's own words and tools take, or 0 where nothing is known."""
    if agent.name == "qwen_code" and "--bare" in (agent.command or ""):
        return _BARE_TOKENS
    return _OWN_TOKENS.get(agent.system_prompt) or (agent.name in PROGRAMS and _OWN_TOKENS.get(agent.name)) or 0


@rule_about(Part.rollouts)
def agent_prompt_fits(config: Config, _: Host) -> Iterator[Finding]:
    agent = config.agent
    rollout = config.rollout
    tokens = own_tokens(config.agent)
    if tokens <= rollout.max_prompt_tokens:
        return
    hopeless = tokens >= rollout.max_trajectory_tokens
    key = "max_prompt_tokens"
    if hopeless:
        key = "max_trajectory_tokens"
    fix = f"rollout.{key}={tokens + rollout.max_turn_tokens * 2}"
    short_prompt = _SHORT_PROMPTS.get(agent.name)
    if short_prompt:
        fix += f", or agent.system_prompt={short_prompt}"
    yield error_if(hopeless)(
        "agent_prompt",
        f"rollout.{key}",
        f"the words and tools of agent={agent.name} alone are about {tokens} tokens, before any task: "
        "such a trajectory ends as context_overflow",
        fix,
    )


@rule_about(Part.rollouts)
def compaction_agent(config: Config, _: Host) -> Iterator[Finding]:
    if config.rollout.compaction is not CompactionKind.none:
        yield from _several_rows(
            config,
            "compaction",
            "rollout.compaction=none",
            COMPACTED,
            "keeps its conversation to itself: nobody else can make it shorter",
            "a conversation that is compacted",
        )


@rule_about(Part.rollouts)
def delegate_agent(config: Config, _: Host) -> Iterator[Finding]:
    if config.agent.delegate.depth:
        yield from _several_rows(
            config,
            "delegate",
            "agent.delegate.depth=0",
            DELEGATING,
            "has no tool that hands a part of the task to a sub-agent of ours",
            "an attempt with sub-agents",
        )


def _several_rows(
    config: Config, subject: str, off: str, agents: Sequence[str], lack: str, recorded: str
) -> Iterator[Finding]:
    """Finds an agent that cannot do what gives an attempt several rows, and a capture that makes one row of it.

    `off` is the choice without it, `agents` are those that can, and `lack` says why another cannot.
    """
    agent = config.agent
    if is_foreign(config, ExtensionKind.agent) or agent.name not in agents:
        able = " or ".join(filter(None, [", ".join(agents[:-1]), agents[-1]]))
        yield error(f"{subject}_agent", off.partition("=")[0], f"agent={agent.name} {lack}", f"{off}, or agent={able}")
    elif config.rollout.capture is Capture.retokenize:
        yield error(
            f"{subject}_capture",
            "rollout.capture",
            f"{recorded} has several rows, and rendering it once makes one",
            "rollout.capture=traced",
        )


@rule_about(Part.rollouts)
def delegate_turns(config: Config, _: Host) -> Iterator[Finding]:
    delegate = config.agent.delegate
    rollout = config.rollout
    if delegate.depth and delegate.max_turns > rollout.max_turns:
        yield error(
            "delegate_turns",
            "agent.delegate.max_turns",
            f"a sub-agent has at most as many turns as an attempt (rollout.max_turns={rollout.max_turns})",
            "agent.delegate.max_turns=0, which is as many",
        )


@rule_between(Part.data, Part.rollouts)
def agent_of_environment(config: Config, _: Host) -> Iterator[Finding]:
    """Finds an environment that brings an agent of its own, and not this agent; or the agent without it."""
    for pair in PAIRS:
        is_env = config.env._target_ == pair.env
        is_agent = config.agent._target_ == pair.agent
        if is_env and not is_agent:
            yield error(f"{pair.name}_pair", "agent.name", pair.env_words, f"agent={pair.name}")
        if is_agent and not is_env:
            words = f"plays {pair.plays}, and env is another one"
            yield error(f"{pair.name}_pair", "agent.name", words, f"env={pair.name} env.dataset={pair.dataset}")


@rule_about(Part.rollouts)
def verifiers_capture(config: Config, _: Host) -> Iterator[Finding]:
    if config.agent._target_ == VERIFIERS.agent and config.rollout.capture is Capture.retokenize:
        words = "agent=verifiers leaves the conversation to its environment, which may change it: only traces are exact"
        yield error("agent_capture", "rollout.capture", words, "rollout.capture=traced")
