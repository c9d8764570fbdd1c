"""What the reader of sources says of odd but legal code: unknown, and never other than Python says."""

import importlib
import inspect
import sys

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import RewardConfig
from swe_rl.extension.find import find_foreign, find_problems
from swe_rl.extension.outline import _cached_tree

HEAD = """
from abc import ABC, ABCMeta, abstractmethod
from dataclasses import dataclass, KW_ONLY
from typing import Any, Generic, Protocol, TypeVar

LIMIT = 1.0
T = TypeVar("T")
async def _shared(self, attempt): return LIMIT
def with_reward(cls):
    cls.reward = _shared
    return cls
def wide(function): return lambda self, attempt: 0.0
class Meta(type):
    def __new__(cls, *given, **more):
        return type.__setattr__(made := super().__new__(cls, *given), "reward", _shared) or made
class Named:
    def reward(self, attempt): return 1.0
class Wrong:
    def reward(self): return 1.0
class Hooked:
    def __init_subclass__(cls, **more): cls.reward = _shared
class Made:
    def __init__(self, scale=2.0): self.reward = lambda attempt: scale
"""
BODIES = [
    "async def reward(self, attempt): return 1.0",
    "def reward(self): return 1.0",
    "def reward(self, attempt, more): return 1.0",
    "@wide\n    def reward(self): return 1.0",
    "@property\n    def reward(self): return lambda attempt: 1.0",
    "@staticmethod\n    def reward(attempt): return 1.0",
    "@abstractmethod\n    def reward(self, attempt): ...",
    "reward = _shared",
    "reward = None",
    "reward: Any = _shared",
    "reward: Any",
    "reward, other = _shared, 1",
    "other = (reward := _shared)",
    "from builtins import len as reward",
    "class reward:\n        def __init__(self, attempt): ...",
    "if True:\n        async def reward(self, attempt): return 1.0",
    "try:\n        reward = nowhere\n    except NameError:\n        reward = _shared",
    "for reward in [_shared]: pass",
    "match {'a': _shared}:\n        case {'a': reward}: pass",
    "locals()['reward'] = _shared",
    "reward = 1\n    del reward",
    "def __getattr__(self, name): return lambda attempt: 1.0",
    "def __init__(self, scale=1.0): self.reward = lambda attempt: scale",
    "def __init__(self, scale=1.0): setattr(self, 'reward', lambda attempt: scale)",
    "def __init__(self, **more): self.more = more",
    "__init__ = lambda self, scale=1.0: None",
    "def __new__(cls, scale=1.0): return object.__new__(cls)",
    "floor = -LIMIT",
    "floor = not LIMIT\n    pays_turns = not LIMIT",
    "pays_turns = False",
    "a, *b = {**{}}, {}\n    c = d = {(): 1}, f'{LIMIT}', -1j",
    "scale: float = 1.0",
    "_: KW_ONLY",
    "'''words'''\n    ...",
    "x = lambda: (yield)",
    "x = 0x" + "f" * 5000,
]
MARKS = ["", "@dataclass\n", "@dataclass(init=False)\n", "@with_reward\n", "@(lambda cls: Named)\n"]
BASES = [
    "", "()", "(Named)", "(Wrong)", "(Hooked)", "(Made)", "(Protocol)", "(ABC, Made)", "(*[Named])", "(Generic[T])",
    "(metaclass=Meta)", "(Named, metaclass=ABCMeta)", "(type('Named', (), {}))", "(dict)", "(**{})",
]  # fmt: skip
AROUND = [
    "{}",
    "if True:\n{}",
    "try:\n    from nowhere import Mine\nexcept ImportError:\n{}",
    "{}\nOther: type = Mine",
    "{}\nMine.reward = _shared",
    "{}\nMine: type = Named",
    "{}\nsetattr(Mine, 'reward', _shared)",
    "{}\nfor Mine in [Named]: ...",
    "from builtins import int as Mine\n{}",
    "{}\nfrom enum import Enum as Mine",
    "{}\nglobals()['Mine'] = Named",
]
PIECES = {
    "bodies": st.lists(st.sampled_from(BODIES), max_size=3),
    "mark": st.sampled_from(MARKS),
    "bases": st.sampled_from(BASES),
    "around": st.sampled_from(AROUND),
    "params": st.sampled_from([{}, {"scale": 2.0}]),
}


def python_refuses(group):
    """Whether its class cannot be made, or not with a method that takes an attempt: without a look at its source."""
    module = importlib.import_module("theirs")
    try:
        made = module.Mine(**group.params)
        return not callable(made.reward) or not _takes_an_attempt(made.reward)
    except (TypeError, AttributeError, NotImplementedError):
        return True


def _takes_an_attempt(method):
    try:
        inspect.signature(method).bind(None)
    except TypeError:
        return False
    return True


def source(bodies, mark, bases, around):
    text = f"{mark}class Mine{bases}:\n    " + "\n    ".join([*bodies, "pass"])
    return HEAD + around.format(text.replace("\n", "\n    ").join(["    ", ""]) if around.endswith(":\n{}") else text)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(**PIECES)
def test_nothing_that_python_takes_is_refused(package, bodies, mark, bases, around, params):
    folder = package("theirs", source(bodies, mark, bases, around))
    sys.modules.pop("theirs", None)
    sys.path[:0] = [str(folder)]
    _cached_tree.cache_clear()
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # a second source of the same second and size
    try:
        group = RewardConfig(name="Mine", _target_="theirs.Mine", params=params)
        chosen = find_foreign(ExtensionKind.reward, group)
        said = list(find_problems(chosen, group, [str(folder)]))  # raises nothing
        try:
            importlib.import_module("theirs")
        except Exception:  # no legal class
            return
        assert not said or python_refuses(group), said
    finally:
        sys.dont_write_bytecode = before
        sys.path.remove(str(folder))
