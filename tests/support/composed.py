"""Compositions that several files of tests look at: each is made once in a process."""

from functools import cache

from swe_rl.config.compose import Composed, compose


@cache
def composed_once(*overrides: str) -> Composed:
    """Returns the composition of a check: of the same values as a start, which `job=check` changes none of."""
    return compose([*overrides, "job=check"])
