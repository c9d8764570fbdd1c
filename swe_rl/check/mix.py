"""Rules of a mix check that it has parts, that they can have their shares, and that nothing is set that nobody reads.

Invariants:
- These rules see the whole mix. All others see a configuration for each part (check/parts).
"""

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields

from swe_rl.check.findings import Finding, Host, error, rule_about, rule_between, warning
from swe_rl.config.parts import Part
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config, InstancesConfig
from swe_rl.facts.mix import MIX, is_mix, part_envs, step_shares
from swe_rl.facts.sizes import trained_instances

# A mix itself reads these keys of env.
_READ = frozenset({"name", "_target_", "params", "split", "eval_split", "num_trajectories"})
# conf/env/mix.yaml sets this, to nothing.
_OF_OPTION = {"dataset": "parts"}
# Names of files, of figures and of instances have the part's name in them.
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_ADD = "+env@env.mix.NAME=OPTION, as +env@env.mix.bugs=bugs"


@rule_about(Part.data)
def mix_has_parts(config: Config, _: Host) -> Iterator[Finding]:
    mix = config.env.mix
    if not is_mix(config.env):
        if mix:
            words = f"env={config.env.name} is one environment, and has no parts"
            yield error("mix", "env.mix", words, "env=mix", value=", ".join(sorted(mix)))
        return
    if not mix:
        yield error("mix", "env.mix", "a mix needs at least one part", _ADD, value="{}")
    for name, part in sorted(mix.items()):
        key = f"env.mix.{name}"
        if part.name == MIX and part._target_ is None:
            yield error("mix", key, "is a mix itself", f"its parts as parts of the whole: {_ADD}", value=part.name)
        if not _NAME.fullmatch(name):
            words = "a part's name is of letters, digits, _ and -: instances and figures are named by it"
            yield error("mix", key, words, _ADD, value=part.name)


@rule_about(Part.data)
def mix_reads_its_keys(config: Config, _: Host) -> Iterator[Finding]:
    """Finds keys that are set for the mix and belong to its parts."""
    if not is_mix(config.env):
        return
    for item in fields(InstancesConfig):
        default = item.default
        if item.default_factory is not MISSING:
            default = item.default_factory()
        default = _OF_OPTION.get(item.name, default)
        if item.name not in _READ and getattr(config.env, item.name) != default:
            words = "each part of a mix has a key of its own, and nobody reads this one"
            yield error("mix_key", f"env.{item.name}", words, f"env.mix.NAME.{item.name}=VALUE, for each part")


@rule_about(Part.steps)
def mix_has_weights(config: Config, host: Host) -> Iterator[Finding]:
    env = config.env
    if not is_mix(env) or not env.mix:
        return
    if all(part.weight == 0 for part in env.mix.values()):
        name = min(env.mix)
        words = "no part has a weight above 0, so there is nothing to train on"
        yield error("mix_weights", f"env.mix.{name}.weight", words, f"env.mix.{name}.weight=1")
        return
    parts = part_envs(env)
    for name, wanted in step_shares(config).items():
        there = trained_instances(parts[name], host.read_text)
        if 0 < there < wanted:
            yield error(
                "mix_weights",
                f"env.mix.{name}.weight",
                f"{wanted} of the {config.rollout.prompts_per_step} instances of a step would be of this part, and it "
                f"has {there}",
                f"a lower weight, or a lower rollout.prompts_per_step, or more instances of {name}",
            )


@rule_between(Part.steps, Part.evaluation)
def mix_splits_apart(config: Config, _: Host) -> Iterator[Finding]:
    env = config.env
    if is_mix(env) and env.split == env.eval_split:
        words = "both splits of a mix have this name. They are names alone: each part reads its own splits"
        yield error("mix", "env.eval_split", words, "env.split=train env.eval_split=heldout")


def find_disagreements(config: Config, origins: Origins) -> Iterator[Finding]:
    """Finds options of other groups that the parts bring, and of which only one can be the run's.

    What the command line or an experiment chooses is what somebody wanted.
    """
    if not is_mix(config.env):
        return
    wanted = {override.partition("=")[0].lstrip("+") for override in origins.overrides}
    wanted |= origins.chosen_by("experiment").keys()
    brought: dict[str, dict[str, list[str]]] = {}
    for name in sorted(config.env.mix):
        for group, option in origins.chosen_by(f"env@env.mix.{name}").items():
            brought.setdefault(group, {}).setdefault(option, []).append(name)
    for group, parts in sorted(brought.items()):
        if group in wanted or len(parts) < 2:
            continue
        said = "; ".join(f"{', '.join(names)}: {group}={option}" for option, names in sorted(parts.items()))
        chosen = origins.choices.get(group, "")
        yield warning(
            "mix_parts",
            group,
            f"the parts of the mix bring different options, and one holds for all of them ({said})",
            f"{group}={chosen}, if that is what all parts are to have, or another one",
            value=chosen,
        )
