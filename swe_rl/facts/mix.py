"""Says what the parts of a mix are: each is an environment of its own, with its share of the groups that are trained.

Invariants:
- Parts come in the order of their names, however the configuration lists them.
- What is said about one environment is said about each part: `part_configs` has a configuration for each.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from fractions import Fraction
from math import ceil

from swe_rl.config.schema import Config, EnvConfig, InstancesConfig, MixPartConfig

MIX = "mix"


def is_mix(env: InstancesConfig) -> bool:
    """Tells whether an environment is a mix of several."""
    return env.name == MIX and env._target_ is None


def part_env(part: MixPartConfig) -> EnvConfig:
    """Returns the environment that a part is, as a run of this part alone would have it."""
    return EnvConfig(**{item.name: getattr(part, item.name) for item in fields(InstancesConfig)})


def part_envs(env: EnvConfig) -> dict[str, EnvConfig]:
    """Returns the environments of a mix by name; of any other environment itself, with an empty name."""
    if not is_mix(env):
        return {"": env}
    return {name: part_env(env.mix[name]) for name in sorted(env.mix)}


def part_configs(config: Config) -> dict[str, Config]:
    """Returns the run's configuration with each part in the place of the mix; without a mix the configuration itself,
    with an empty name."""
    return {name: replace(config, env=env) for name, env in part_envs(config.env).items()}


def is_trained(env: EnvConfig, name: str) -> bool:
    """Tells whether groups are of this part. A part without weight is evaluated only."""
    return not is_mix(env) or env.mix[name].weight > 0


def shares_of(weights: Mapping[str, float]) -> dict[str, Fraction]:
    """Returns the share of the groups that each name has. They are exact, and add up to 1."""
    exact = {name: Fraction(str(weight)) for name, weight in weights.items() if weight > 0}
    total = sum(exact.values(), Fraction(0))
    return {name: weight / total for name, weight in exact.items()}


def step_shares(config: Config) -> dict[str, int]:
    """Returns how many instances of a step are of each part that is trained, rounded up; nothing without a mix."""
    prompts = config.rollout.prompts_per_step
    return {name: ceil(share * prompts) for name, share in trained_shares(config.env).items()}


def trained_shares(env: EnvConfig) -> dict[str, Fraction]:
    """Returns the shares of the parts that are trained, in the order of their names."""
    return shares_of({name: env.mix[name].weight for name in sorted(env.mix)})
