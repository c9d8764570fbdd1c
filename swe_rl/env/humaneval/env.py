"""Offers HumanEval's problems: a folder with one function to be written, graded by the problem's own checks."""

from pathlib import Path

from swe_rl.config.schema import EnvConfig
from swe_rl.env.env import Grading
from swe_rl.env.humaneval.read import read_split, tree_of
from swe_rl.env.kodcode.env import KodcodeEnv


class HumanevalEnv(KodcodeEnv):
    """Offers the instances of `conf/env/humaneval.yaml`. The protocol says what each method does."""

    def __init__(self, config: EnvConfig, cache: Path, grader: Grading | None = None) -> None:
        super().__init__(config, cache, grader, read=read_split, files=tree_of)
