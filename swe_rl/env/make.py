"""Finds the environment that a configuration means: ours by a table, anybody's by `env._target_` or an entry point."""

from pathlib import Path

from swe_rl.config.choices import ExtensionKind, SandboxKind
from swe_rl.config.schema import EnvConfig, GraderConfig
from swe_rl.env.bugs.env import BugsEnv
from swe_rl.env.env import Env
from swe_rl.env.foreign import ForeignEnv
from swe_rl.env.grading.foreign import make_grader
from swe_rl.env.mix import MixedEnv, make_part
from swe_rl.env.swe.env import SweEnv
from swe_rl.extension.find import find_foreign
from swe_rl.extension.make import make_extension
from swe_rl.facts.mix import is_mix, part_envs

# Names that are not in this table are data sets of real repositories, which SweEnv reads.
_OTHERS = {
    "bugs": "swe_rl.env.bugs.env.BugsEnv",
    "kodcode": "swe_rl.env.kodcode.env.KodcodeEnv",
    "humaneval": "swe_rl.env.humaneval.env.HumanevalEnv",
    "harbor": "swe_rl.env.harbor.env.HarborEnv",
}


_DEFAULT = GraderConfig()


def make_env(
    config: EnvConfig, cache: Path, sandbox: SandboxKind = SandboxKind.process, grader: GraderConfig = _DEFAULT
) -> Env:
    """Returns the environment that `config` names.

    `cache` holds prepared workspaces; `sandbox` decides whether an instance's workspace is a folder or an image. A name
    of ours that is not in the table is a data set of real repositories. A user's own environment grades by itself. The
    parts of a mix are made as environments of their own.
    """
    if is_mix(config):
        parts = [
            make_part(config, name, part, make_env(part, cache, sandbox, grader))
            for name, part in part_envs(config).items()
        ]
        return MixedEnv(config, parts)
    judge = make_grader(grader, config)
    given = {"config": config, "cache": cache, "sandbox": sandbox}
    if config.name not in _OTHERS and find_foreign(ExtensionKind.env, config) is None:
        judged_by = "" if judge is None else f"{grader._target_ or grader.name} {dict(grader.params)}"
        return SweEnv(config, cache, sandbox, BugsEnv(config, cache, judge), judge, judged_by)
    of_ours = {"grader": judge} if find_foreign(ExtensionKind.env, config) is None else {}
    env, maker = make_extension(ExtensionKind.env, config, given | of_ours, _OTHERS)
    made: Env = env if maker is None else ForeignEnv(env, maker)
    return made
