"""Notices code of the tested tree that is told of calls: it can exchange a test, and be gone when the test has ended.

Invariants:
- Stands alone (Python 3.6 and later): its text is put into sandboxes, before the text of the program that imports it.
- Python's own profilers and tracers, and those of installed packages (coverage, hypothesis), are nobody's trick. A
  file's folder says whose it is.
- Since Python 3.8 a profiler and a tracer are heard of when another one, or none, takes their place. Before, they are
  only seen by who looks.
"""

import functools
import os
import site
import sys
import sysconfig
from pathlib import Path
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any, Callable  # noqa: UP035 - 3.6 has no other

_IMPORT = "from swe_rl.env.grading.told_of_calls import make_listener\n"
_BOUND = (MethodType, BuiltinMethodType, type("".__str__))  # the last: a method of a type in C


def with_listener(program: Path) -> str:
    """The text of a program that may import this file, as one that stands alone."""
    before, imports, after = program.read_text(encoding="utf-8").partition(_IMPORT)
    return (Path(__file__).read_text(encoding="utf-8") if imports else "") + before + after


def installed_places(library: bool) -> "tuple[str, ...]":
    """Folders of installed packages, and of Python's library."""
    paths = sysconfig.get_paths()
    places = [paths[name] for name in ("purelib", "platlib", *(("stdlib", "platstdlib") if library else ()))]
    places += [str(Path(file).parent) for file in (os.__file__, os.path.realpath(os.__file__)) if library]
    places += getattr(site, "getsitepackages", list)()  # an old virtualenv's has none
    places.append(getattr(site, "USER_SITE", None) or places[0])
    return tuple({os.path.normpath(path) + os.sep for place in places for path in (place, os.path.realpath(place))})


def files_of(thing: Any) -> "list[str]":
    """The files of the code that runs when `thing` is called; none of what is built in."""
    kind = type(thing)
    if kind is FunctionType:
        return [thing.__code__.co_filename]
    if kind is functools.partial:
        return [file for part in (thing.func, *thing.args) for file in files_of(part)]
    if kind in _BOUND:
        return files_of(getattr(thing, "__func__", None)) + files_of(thing.__self__)
    name = str((thing if issubclass(kind, type) else kind).__module__)
    return [] if name in sys.builtin_module_names else [str(getattr(sys.modules.get(name), "__file__", ""))]


def is_a_profile(thing: Any) -> bool:
    """cProfile's own: honest code starts one. One with a timer of the tree is not told apart."""
    kind = getattr(sys.modules.get("cProfile"), "Profile", None)
    return type(getattr(thing, "__self__", thing)) is kind


def make_listener(note: "Callable[[str], None]") -> "Callable[[], None]":
    """`note` gets the name of each way in which the tree is told of calls. That counts also where it names code of
    somebody else, which could tell it. Returns a function that looks who is told now."""
    everything, packages = installed_places(True), installed_places(False)
    normal, frame_above = os.path.normpath, sys._getframe
    who = {"sys.setprofile": sys.getprofile, "sys.settrace": sys.gettrace}
    asked_by_tree = dict.fromkeys(who, False)  # before Python 3.8 nobody says who asked
    others = []  # type: list[Any] # whom code that is installed had told: the tree may put one back

    def outside(file: str, places: "tuple[str, ...]" = everything) -> bool:
        return not normal(file).startswith(places)

    def of_the_tree(thing: Any, asked: bool) -> bool:
        if thing is None or is_a_profile(thing) or any(thing is other for other in others):
            return False
        return asked or any(map(outside, files_of(thing)))

    def look() -> None:
        for name, current in who.items():
            if of_the_tree(current(), asked_by_tree[name]):
                note(name)

    def hook(event: str, arguments: Any) -> None:
        if event in who:
            look()
            if not asked_by_tree[event] and not any(map(outside, files_of(who[event]()))):
                others.append(who[event]())
            asked_by_tree[event] = outside(frame_above(1).f_code.co_filename)
        elif event == "sys.monitoring.register_callback":
            if of_the_tree(arguments[0], outside(frame_above(1).f_code.co_filename)):
                note(event)
        elif event == "sys.addaudithook" and outside(frame_above(1).f_code.co_filename, packages):
            note(event)

    getattr(sys, "addaudithook", id)(hook)
    return look
