"""Ranks of the trainer as forks of pytest's own process, which has torch, FSDP and transformers imported.

A rank that is spawned imports them anew, for about five seconds of a core. What a rank does afterwards is the same: its
pipe, its log, its signals, its end with its driver. Of each kind of test one starts its ranks as the product does.
"""

import importlib
import multiprocessing
import sys
from types import SimpleNamespace

from swe_rl.trainer.ranks import link

# Before the fork: what a rank imports late, each rank would import for itself.
_MODULES = ("swe_rl.trainer.sharded.assemble", "transformers.models.qwen3.modeling_qwen3", "swe_rl.algo.foreign.loss")


class _Forks:
    """As much of a context of multiprocessing as the ranks' link uses."""

    def __init__(self):
        self._context = multiprocessing.get_context("fork")
        self._drivers = []  # ends of the driver's: a fork inherits all of them, a spawned process none

    def Pipe(self):  # noqa: N802 - the name of multiprocessing
        ours, theirs = self._context.Pipe()
        self._drivers.append(ours)
        return ours, theirs

    def Process(self, *, target, args, **named):  # noqa: N802
        return self._context.Process(target=self._alone, args=(target, args), **named)

    def _alone(self, target, args):
        for end in self._drivers:
            end.close()
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # not pytest's: descriptors 1 and 2, as its log wants
        target(*args)


def fork_ranks(monkeypatch):
    """Until `monkeypatch` is undone."""
    for name in _MODULES:
        importlib.import_module(name)
    forks = _Forks()
    monkeypatch.setattr(link, "multiprocessing", SimpleNamespace(get_context=lambda _: forks))
