"""Rules of a user's own code check that it is there, has the methods of its kind, and takes its `params`.

Invariants:
- The rules read its source. Nothing of it is imported, so neither is torch, but for a user's own rule, which is run.
  What only running the others shows is refused at the start, before anything is started (`swe_rl/extension/make.py`).
"""

from collections.abc import Iterator

from swe_rl.check.findings import Finding, Host, error, rule_about, rule_between, warning
from swe_rl.check.foreign import of_somebody
from swe_rl.check.rules.agent import PROGRAMS
from swe_rl.check.rules.sandbox import FOLDERS
from swe_rl.config.choices import Capture, DynamicSampling, ExtensionKind, PolicyLoss, SandboxKind
from swe_rl.config.keys import nearest_words
from swe_rl.config.parts import Part
from swe_rl.config.schema import Config
from swe_rl.extension.code import is_used
from swe_rl.extension.find import declared_attribute, find_foreign, find_problems, foreign_names, is_foreign, kinds_read
from swe_rl.extension.kinds import group_of

_NAMED_DEFAULT = tuple(map(ExtensionKind, ("reward", "advantage", "loss", "rule", "grader", "sandbox")))
_OURS = dict.fromkeys(_NAMED_DEFAULT, ("default",))


@rule_about()
def code_is_there(config: Config, host: Host) -> Iterator[Finding]:
    for folder in () if is_used() else config.job.code:
        if not host.exists(folder) or host.file_exists(folder):
            yield error("code", "job.code", f"there is no folder {host.absolute(folder)}", "job.code=[FOLDER]")


@rule_about()
def check_extensions(config: Config, _: Host) -> Iterator[Finding]:
    for kind in kinds_read(config):
        group = group_of(config, kind)
        chosen = find_foreign(kind, group)
        if chosen is not None:
            for problem in find_problems(chosen, group, config.job.code):
                value = group._target_ or group.name if problem.key.endswith("_target_") else None
                params = group.params.get(problem.key.rpartition(".")[2], "") if value is None else value
                yield error("extension", problem.key, problem.message, problem.fix, value=params)
        elif kind in _OURS and group.name not in _OURS[kind]:
            known = [*_OURS[kind], *foreign_names(kind)]
            near = nearest_words(group.name, known) or known
            yield error("unknown_name", f"{kind}.name", f"there is no such {kind}", f"{kind}={' or '.join(near)}")
        elif group.params:
            words = f"nothing reads it: {kind}={group.name} is ours, and takes its own keys alone"
            yield warning("extension", f"{kind}.params", words, f"leave it out, or set {kind}._target_")


@rule_about()
def own_rule(config: Config, _: Host) -> Iterator[Finding]:
    """Yields what the user's own rule says. What its source alone says against it is said above."""
    chosen = find_foreign(ExtensionKind.rule, config.rule)
    if chosen is not None and not any(find_problems(chosen, config.rule, config.job.code)):
        yield from of_somebody(config)


@rule_about(Part.data)
def own_grader(config: Config, _: Host) -> Iterator[Finding]:
    if is_foreign(config, ExtensionKind.grader) and is_foreign(config, ExtensionKind.env):
        words = f"env={config.env.name} grades by its own method, and nobody would ask grader={config.grader.name}"
        yield error("own_grader", "grader.name", words, "grader=default")


@rule_about(Part.trainer)
def own_group(config: Config, _: Host) -> Iterator[Finding]:
    if not is_foreign(config, ExtensionKind.advantage):
        return
    needs = declared_attribute(config, ExtensionKind.advantage, "needs_group")
    name = f"advantage={config.advantage.name}"
    if needs and config.rollout.n == 1:
        words = f"{name} compares the trajectories of one instance (its needs_group); with one of them none can be"
        yield error("group_size", "rollout.n", words, "rollout.n=4")
    if not needs and config.algo.dynamic_sampling is not DynamicSampling.none:
        words = f"{name} has no baseline of the group, so a group of equal rewards still teaches and is thrown away"
        yield warning("resample", "algo.dynamic_sampling", words, "algo.dynamic_sampling=none")


@rule_about(Part.trainer)
def own_loss(config: Config, _: Host) -> Iterator[Finding]:
    if not is_foreign(config, ExtensionKind.loss):
        return
    needs = declared_attribute(config, ExtensionKind.loss, "needs_rollout_logprobs")
    name = f"loss={config.loss.name}"
    if needs and config.rollout.capture is Capture.retokenize:
        words = f"{name} reads the sampled log-probabilities, which it does not have"
        yield error("own_loss", "rollout.capture", words, "rollout.capture=traced")
    reads_reference = declared_attribute(config, ExtensionKind.loss, "needs_reference_logprobs")
    if reads_reference and config.algo.kl_coef == 0 and config.trainer.lora_rank == 0:
        words = f"{name} reads a reference model (its needs_reference_logprobs), and 0 loads none"
        yield error("own_loss", "algo.kl_coef", words, "algo.kl_coef=0.001")
    if config.algo.policy_loss is not PolicyLoss.clip:
        words = f"{name} stands in its place, but the correction of log-probabilities would still follow it"
        yield error("own_loss", "algo.policy_loss", words, "algo.policy_loss=clip")


@rule_between(Part.data, Part.sandboxes)
def own_env(config: Config, _: Host) -> Iterator[Finding]:
    needs = declared_attribute(config, ExtensionKind.env, "needs_container")
    if is_foreign(config, ExtensionKind.env) and needs and config.sandbox.kind is SandboxKind.process:
        words = f"env={config.env.name} starts from images (its needs_container), and these are processes of a folder"
        yield error("own_env", "sandbox.kind", words, "sandbox=docker")


@rule_about(Part.sandboxes)
def own_sandbox(config: Config, _: Host) -> Iterator[Finding]:
    sandbox = config.sandbox
    name = f"sandbox={config.sandbox.name}"
    if not is_foreign(config, ExtensionKind.sandbox):
        if sandbox.kind is SandboxKind.custom:
            fix = "sandbox._target_=MODULE.CLASS, as Python imports it"
            yield error("own_sandbox", "sandbox.kind", "runs a class of your own, and none is named", fix)
        return
    if sandbox.kind is not SandboxKind.custom:
        words = f"{name} is code of your own, which says itself where commands run"
        yield error("own_sandbox", "sandbox.kind", words, "leave sandbox.kind out")
    if declared_attribute(config, ExtensionKind.sandbox, "has_network") and not sandbox.network:
        words = f"in {name} commands reach the network (its has_network), and what they fetch could be the answer"
        yield error("own_sandbox", "sandbox.network", words, "sandbox.network=true, which accepts it")
    if not declared_attribute(config, ExtensionKind.sandbox, "ends_when_killed"):
        words = f"what a killed run leaves of {name} may stay (its ends_when_killed): look where its sandboxes are"
        yield warning("own_sandbox", "sandbox.lease_s", words, "declare ends_when_killed = True, and keep to it")


@rule_between(Part.sandboxes, Part.rollouts)
def own_sandbox_starts(config: Config, _: Host) -> Iterator[Finding]:
    if not is_foreign(config, ExtensionKind.sandbox):
        return
    name = f"sandbox={config.sandbox.name}"
    folders = config.env.name in FOLDERS
    declares = "takes_images"
    if folders:
        declares = "takes_folders"
    if not is_foreign(config, ExtensionKind.env) and not declared_attribute(config, ExtensionKind.sandbox, declares):
        words = f"{name} does not start from the {declares.removeprefix('takes_')} of env={config.env.name}"
        yield error("own_sandbox", "sandbox._target_", f"{words} (its {declares})", "another sandbox, or another env")
    own_program = is_foreign(config, ExtensionKind.agent) and declared_attribute(
        config, ExtensionKind.agent, "needs_door"
    )
    if (own_program or config.agent.name in PROGRAMS) and not declared_attribute(
        config, ExtensionKind.sandbox, "has_door"
    ):
        words = f"runs inside the sandbox and asks the model there, and {name} has no way to it (its has_door)"
        yield error("own_sandbox", "agent.name", words, "agent=bash or agent=mini_swe, which ask from here")
