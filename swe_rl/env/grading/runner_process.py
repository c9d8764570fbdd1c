"""What programs of the grader's share in the runner's process: signed records, outcomes, and who is told of calls.

Invariants:
- Stands alone (Python 3.6 and later): its text is put into sandboxes, before the text of the program that imports it.
- `pytest.xfail()`, `pytest.skip()` and marks are words of tests. An outcome that the tests' own text does not explain
  has ELSEWHERE behind its name and is no pass. A call is explained by the line that made it, in a file of tests; a mark
  by what belongs to the test in its own file.
- Code of the tested tree that is told of calls can exchange a test, and be gone when the test has ended. Python's own
  profilers and tracers, and those of installed packages (coverage, hypothesis), are nobody's trick: a file's folder
  says whose it is. Since Python 3.8 they are heard of when another one, or none, takes their place; before, only seen.
"""

import ast
import functools
import hashlib
import json
import os
import re
import site
import sys
import sysconfig
from pathlib import Path
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any, Callable  # noqa: UP035 - 3.6 has no other

ELSEWHERE = " elsewhere"
_IMPORT = re.compile(r"^from swe_rl\.env\.grading\.runner_process import .*\n", re.MULTILINE)
_BOUND = (MethodType, BuiltinMethodType, type("".__str__))  # the last: a method of a type in C
_MACHINERY = ("_pytest", "pluggy", "unittest")
_TEST_FILE = re.compile(r"/tests?/|/(?:conftest|test_[^/]*|[^/]*_test)\.py$")  # what pinned.py puts back
_WORDS = {"xfailed": ("xfail", "expectedfailure"), "skipped": ("skip",)}
_MOVING = ("_getini_unknown_type",)  # pytest's own plugin `legacypath` exchanges it
_LINES_OF_A_CALL = 4  # Python before 3.8 gives the last line


def with_imports(program: Path) -> str:
    """The text of a program that may import this file, as one that stands alone."""
    text = program.read_text(encoding="utf-8")
    return (Path(__file__).read_text(encoding="utf-8") if _IMPORT.search(text) else "") + _IMPORT.sub("", text)


def make_tell(key: bytes, channel: int) -> "Callable[[dict[str, Any]], None]":
    """Writes signed records; the first process alone does, not those that it forks. Everything that it needs is bound
    now, so that replacing modules' functions changes nothing."""
    sign, write, dumps, getpid = hashlib.blake2b(key=key), os.write, json.dumps, os.getpid
    first, count = getpid(), [0]

    def tell(record: "dict[str, Any]") -> None:
        if getpid() != first:
            return
        text = dumps(record).encode()
        count[0] += 1  # part of what is signed: no record can be left out, repeated or moved
        mark = sign.copy()
        mark.update(str(count[0]).encode() + b" " + text)
        data = text + b" " + mark.hexdigest().encode() + b"\n"
        while data:
            data = data[write(channel, data) :]

    return tell


@functools.lru_cache(maxsize=None)  # noqa: UP033 - 3.6 has no other
def _text_of(path: str) -> "tuple[list[str], list[tuple[str, int, int]]]":
    """The lines of a file, and where its tests are."""
    try:
        data = Path(path).read_bytes()
    except OSError:
        return [], []
    try:
        nodes = list(ast.walk(ast.parse(data)))  # type: list[Any]
    except (SyntaxError, ValueError, RecursionError):  # tests are written in other languages, too
        nodes = []
    tests = []
    for node in nodes:
        if type(node) not in (ast.FunctionDef, ast.AsyncFunctionDef) or not node.name.startswith("test"):
            continue
        first = min(part.lineno for part in [node, *node.decorator_list])
        tests.append((node.name, first, max(getattr(part, "lineno", 0) for part in ast.walk(node))))
    return data.decode("utf-8", "replace").lower().split("\n"), tests


def _without_others(path: str, test: str) -> "list[str]":
    lines, tests = list(_text_of(path)[0]), _text_of(path)[1]
    for name, first, last in tests:
        if name != test:
            lines[first - 1 : last] = [""] * (last - first + 1)
    return lines


def _raised_at(trace: Any) -> "tuple[str, int] | None":
    """File and line of the innermost code that is not the runner's."""
    where = None
    while trace is not None:
        frame = trace.tb_frame
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _MACHINERY:
            where = (os.path.realpath(frame.f_code.co_filename), trace.tb_lineno)
        trace = trace.tb_next
    return where


def make_outcomes() -> "tuple[Callable[[Any, Any, Any], str], Callable[[Any], str]]":
    """What became of an item of pytest, by its call and its report, and of a test that unittest skips."""
    root, real, installed = os.path.realpath(str(Path.cwd())), os.path.realpath, installed_places(True)

    def named(outcome: str, path: str, test: str, error: Any) -> str:
        try:
            by_tests = said_by_tests(outcome, path, test, error)
        except Exception:  # what a test replaces (`os`, `open`, `Path`) is still replaced here
            by_tests = False
        return outcome if by_tests else outcome + ELSEWHERE

    def said_by_tests(outcome: str, path: str, test: str, error: Any) -> bool:
        pytest = sys.modules.get("pytest")
        kinds = tuple(getattr(getattr(pytest, name, None), "Exception", ()) for name in ("xfail", "skip"))
        said = isinstance(error, kinds) or type(error).__name__ == "SkipTest"
        path, where = real(path), _raised_at(error.__traceback__) if said else None
        lines = []  # type: list[str]
        if where is None:
            lines = _without_others(path, test)
        elif outcome == "skipped" and where[0].startswith(installed):
            return True  # a plugin's, such as pytest-remotedata's
        elif where[0] == path or (where[0].startswith(root + "/") and _TEST_FILE.search(where[0][len(root) :])):
            lines = _text_of(where[0])[0][max(0, where[1] - _LINES_OF_A_CALL) : where[1]]
        return any(word in line for line in lines for word in _WORDS[outcome])

    def of_item(item: Any, call: Any, report: Any) -> str:
        error = call.excinfo and call.excinfo.value
        if getattr(report, "wasxfail", None) is not None:
            outcome = "xfailed" if report.outcome == "skipped" else "xpassed"
        # The call itself decides: hooks of the tested tree may have rewritten the report.
        elif error is None:
            outcome = "passed" if report.outcome == "passed" else "failed"
        else:
            outcome = "skipped" if report.outcome == "skipped" else "failed"
        test = getattr(item, "originalname", None) or item.name.partition("[")[0]
        return (
            named(outcome, str(getattr(item, "path", None) or item.fspath), test, error)
            if outcome in _WORDS
            else outcome
        )

    def of_skip(test: Any) -> str:
        path = getattr(sys.modules.get(type(test).__module__), "__file__", None) or ""
        error = sys.exc_info()[1]  # none for a mark
        return "skipped" if error is None else named("skipped", path, "", error)

    return of_item, of_skip


def parts_of(module: ModuleType) -> "list[tuple[str, Any, str, Any]]":
    """(its name, owner, name, value) of the module's classes, and of the functions of module and classes."""
    parts = []  # type: list[tuple[str, Any, str, Any]]
    owners = [(module.__name__, module)]  # type: list[tuple[str, Any]]
    for name, value in list(vars(module).items()):
        # By its type alone: an object that stands in for another one would be woken by any question.
        if issubclass(type(value), type) and value.__module__ == module.__name__:
            parts.append((module.__name__, module, name, value))
            owners.append((module.__name__ + "." + name, value))
    for owner_name, owner in owners:
        for name, value in list(vars(owner).items()):
            plain = value.__func__ if type(value) in (classmethod, staticmethod) else value
            if type(plain) is FunctionType and name not in _MOVING:
                parts.append((owner_name, owner, name, value))
    return parts


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
