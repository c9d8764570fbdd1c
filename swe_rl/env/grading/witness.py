"""Runs at the start of the process that runs a repository's own tests, and signs what becomes of each of them.

Invariants:
- Stands alone (Python 3.6 and later) with runner_process: their text is put into sandboxes. It starts before any
  tested code, reads its key from a file that it removes, and takes part in one process only: the first that is a test
  runner.
- What the tests print takes no part. A result is noted where the runner itself learns of it (pytest's report,
  unittest's TestResult, SymPy's reporter), signed and numbered.
- Functions of the runner that are not what they were when they were imported, built-ins and finders of modules that
  were exchanged, plugins that came in, code of the tree that is told of each call (profilers, tracers), and a test
  that must fail and does not, are noted as well.
"""

import atexit
import builtins
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, Callable  # noqa: UP035 - 3.6 has no other

from swe_rl.env.grading.runner_process import make_listener, make_outcomes, make_tell, parts_of

WATCHED = ("_pytest", "pluggy", "unittest")
NOT_WATCHED = ("unittest.mock",)  # plugins wrap its assertions
MAX_PROBES = 40  # of the first tests; later every fourth is probed
LOOK_SHARE = 20.0  # looking takes this part of the time at most
TELLS_PASS = {"addSuccess": "passed", "addSkip": "skipped", "addExpectedFailure": "xfailed"}
TELLS_FAIL = ("addFailure", "addError", "addUnexpectedSuccess")
REPORTER = {"test_pass": "passed", "test_xfail": "xfailed", "test_skip": "skipped"}
REPORTER_FAIL = ("test_fail", "test_xpass", "test_exception")


def program() -> str:
    """What this process runs: the last part of a script's path, or a module's name after `-m`."""
    with Path("/proc/self/cmdline").open("rb") as file:
        words = [os.fsdecode(word) for word in file.read().split(b"\0")][1:]
    while words:
        word = words.pop(0)
        if word in ("-X", "-W", "-Q") and words:
            words.pop(0)
        elif word == "-m":
            return words[0] if words else ""
        elif not word.startswith("-"):
            return word.rpartition("/")[2]
        elif "c" in word.strip("-"):
            return ""
    return ""


class Watch:
    """Parts of the runner as they were when they were imported."""

    def __init__(self, watched: "tuple[str, ...]") -> None:
        self._watched = watched
        self._prefixes = (sys.prefix, sys.base_prefix, "<frozen")
        self._parts = []  # type: list[tuple[str, Any, str, Any, Any]]
        self._builtins = dict(vars(builtins))
        self._variables, self._clock = vars, time.perf_counter
        self._next_s = 0.0
        self.ours = None  # type: Any
        self.look_who_is_told = int  # type: Callable[[], object]
        self.changed = set()  # type: set[str]

    def covers(self, name: str) -> bool:
        tops = (top for top in self._watched if name not in NOT_WATCHED)
        return any(name == top or name.startswith(top + ".") for top in tops)

    def remember(self, module: ModuleType) -> None:
        for owner_name, owner, name, value in parts_of(module):
            self._parts.append((owner_name, owner, name, value, getattr(value, "__code__", None)))

    def look(self, *, always: bool = False) -> None:
        self.look_who_is_told()
        started_s = self._clock()
        if started_s < self._next_s and not always:
            return
        for owner_name, owner, name, value, code in self._parts:
            here = self._variables(owner).get(name)
            if here is not value or (code is not None and here.__code__ is not code):
                self.changed.add(owner_name + "." + name)
        for name, value in self._builtins.items():
            if name != "_" and self._variables(builtins).get(name) is not value:
                self.changed.add("builtins." + name)
        for finder in sys.meta_path:
            if finder is not self.ours:
                self.meet("finder", finder)
        ended_s = self._clock()
        self._next_s = ended_s + LOOK_SHARE * (ended_s - started_s)

    def meet(self, what: str, thing: Any) -> None:
        """Notes a finder or plugin that is neither the environment's nor part of what is watched."""
        kind = thing if isinstance(thing, (type, ModuleType)) else type(thing)
        name = kind.__name__ if isinstance(kind, ModuleType) else str(kind.__module__)
        home = sys.modules.get(name)
        known = home is kind or getattr(home, kind.__name__, None) is kind
        place = str(getattr(home, "__file__", "") or "")
        foreign = not place or place.startswith(self._prefixes) or name.rpartition(".")[2] == "conftest"
        if not known or not (foreign or self.covers(name)):
            self.changed.add(what + " " + name + "." + kind.__name__)


class Finder:
    """Lets the other finders find, and sees a watched module as soon as it has been executed."""

    def __init__(self, watch: Watch, seen: "Callable[[ModuleType], None]") -> None:
        self._watch, self._seen = watch, seen
        watch.ours = self

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not self._watch.covers(name):
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        real, seen = getattr(loader, "exec_module", None), self._seen
        if real is None or isinstance(loader, type):
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            real(module)
            seen(module)

        loader.exec_module = exec_module


def copied(item: Any) -> Any:
    """A test like `item` that nothing shares with it what a run of a test writes to."""
    import copy

    clone = copy.copy(item)
    for name in ("_store", "stash", "catch_log_handlers"):
        store = getattr(item, name, None)
        if isinstance(store, dict):
            setattr(clone, name, dict(store))
        elif store is not None:
            inner = "_storage" if hasattr(store, "_storage") else "_store"
            fresh = type(store)()
            values = getattr(store, inner).items()
            setattr(fresh, inner, {key: dict(value) if type(value) is dict else value for key, value in values})
            setattr(clone, name, fresh)
    clone._report_sections = []
    return clone


class NoArguments:
    argnames = ()  # type: tuple[str, ...]
    initialnames = ()  # type: tuple[str, ...]
    names_closure = ()  # type: tuple[str, ...]
    name2fixturedefs = {}  # type: dict[str, Any]


def must_fail() -> None:
    raise AssertionError("this test must fail")


def make_plugin(config: Any, hookimpl: Any, tell: "Callable[[dict[str, Any]], None]", watch: Watch) -> object:
    """pytest's word on each test, and on a copy of it that must fail."""
    outcome_of = make_outcomes()[0]
    state = {"probes": 0, "probing": False, "passed": False}  # type: dict[str, Any]

    def name_of(item: Any) -> str:
        try:
            return str(config.cwd_relative_nodeid(item.nodeid))
        except Exception:
            return str(item.nodeid)

    def probe(item: Any) -> None:
        """The same way that the test went, with a function that raises: the runner must call that failed."""
        runner = sys.modules["_pytest.runner"]  # type: Any
        kept = {name: getattr(sys, name) for name in vars(sys) if name.startswith("last_")}
        clone = copied(item)
        clone._obj, clone._fixtureinfo = must_fail, NoArguments()
        state["probing"] = True
        try:
            report = runner.call_and_report(clone, "call", log=False)
            if report.outcome != "failed":
                watch.changed.add("a test that must fail")
        finally:
            state["probing"] = False
            for name in [name for name in vars(sys) if name.startswith("last_")]:
                delattr(sys, name)
            vars(sys).update(kept)

    class Plugin:
        @hookimpl(hookwrapper=True, tryfirst=True)  # type: ignore[untyped-decorator, unused-ignore]
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            result = yield
            if state["probing"]:
                return
            outcome = outcome_of(item, call, result.get_result())
            if call.when == "call":
                state["passed"] = outcome == "passed"
            tell({"kind": "pytest", "test": name_of(item), "when": call.when, "outcome": outcome})
            watch.look()

        @hookimpl(hookwrapper=True, tryfirst=True)  # type: ignore[untyped-decorator, unused-ignore]
        def pytest_runtest_teardown(self, item: Any) -> Any:
            state["probes"] += state["passed"]
            wanted = state["probes"] <= MAX_PROBES or state["probes"] % 4 == 0
            if state["passed"] and wanted and type(item).__name__ == "Function" and "xfail" not in item.keywords:
                try:
                    probe(item)
                except Exception as error:
                    tell({"note": "no probe: " + type(error).__name__})
            state["passed"] = False
            yield

        @hookimpl(tryfirst=True)  # type: ignore[untyped-decorator, unused-ignore]
        def pytest_sessionfinish(self) -> None:
            watch.look(always=True)
            for _, plugin in config.pluginmanager.list_name_plugin():
                if plugin is not None and plugin is not self:
                    watch.meet("plugin", plugin)

    return Plugin()


def follow_pytest(module: Any, tell: "Callable[[dict[str, Any]], None]", watch: Watch) -> None:
    """The first configuration of the process is the runner's; those that tests make are theirs."""
    real = module.get_config

    def get_config(*arguments: Any, **words: Any) -> Any:
        module.get_config = real
        config = real(*arguments, **words)
        config.pluginmanager.register(make_plugin(config, module.hookimpl, tell, watch), "swe_rl_witness")
        return config

    module.get_config = get_config


def follow_unittest(result: Any, tell: "Callable[[dict[str, Any]], None]", watch: Watch) -> None:
    outcome_of_skip = make_outcomes()[1]

    def note(test: Any, outcome: str) -> None:
        outcome = outcome_of_skip(test) if outcome == "skipped" else outcome
        describe = getattr(test, "shortDescription", None)
        about = (describe() if describe else None) or ""
        tell({"kind": "unittest", "test": str(test), "about": about, "outcome": outcome})
        watch.look()

    def following(name: str, outcome: str) -> None:
        real = getattr(result, name)

        def method(self: Any, test: Any, *arguments: Any) -> Any:
            note(test, outcome)
            return real(self, test, *arguments)

        method.__name__ = name
        setattr(result, name, method)

    for name, outcome in TELLS_PASS.items():
        following(name, outcome)
    for name in TELLS_FAIL:
        following(name, "failed")
    real_sub = result.addSubTest

    def add_sub_test(self: Any, test: Any, subtest: Any, err: Any) -> Any:
        if err is not None:
            note(test, "failed")
        return real_sub(self, test, subtest, err)

    result.addSubTest = add_sub_test


def follow_sympy(reporter: Any, tell: "Callable[[dict[str, Any]], None]", watch: Watch) -> None:
    current = [""]
    entering = reporter.entering_test

    def entering_test(self: Any, f: Any) -> Any:
        current[0] = f.__name__
        return entering(self, f)

    def following(name: str, outcome: str) -> None:
        real = getattr(reporter, name)

        def method(self: Any, *arguments: Any, **words: Any) -> Any:
            tell({"kind": "sympy", "test": current[0], "outcome": outcome})
            watch.look()
            return real(self, *arguments, **words)

        setattr(reporter, name, method)

    reporter.entering_test = entering_test
    for name, outcome in REPORTER.items():
        following(name, outcome)
    for name in REPORTER_FAIL:
        following(name, "failed")


def start(settings: "dict[str, Any]") -> None:
    """`settings`: `start` (the file of this text), `key`, `records`, `programs`, `watched`."""
    if program() not in settings["programs"]:
        return
    Path(settings["start"]).unlink()
    channel = os.open(settings["records"], os.O_WRONLY | os.O_APPEND)
    watch = Watch(WATCHED + tuple(settings["watched"]))
    tell = make_tell(bytes.fromhex(settings["key"]), channel)

    def seen(module: ModuleType) -> None:
        if module.__name__ == "unittest.result":
            follow_unittest(module.TestResult, tell, watch)
        elif module.__name__.endswith(".runtests") and hasattr(module, "PyTestReporter"):
            follow_sympy(module.PyTestReporter, tell, watch)
        watch.remember(module)
        if module.__name__ == "_pytest.config":
            follow_pytest(module, tell, watch)

    def finish() -> None:
        watch.look(always=True)
        tell({"finished": sorted(watch.changed)})

    for name, module in list(sys.modules.items()):
        if watch.covers(name):
            seen(module)
    sys.meta_path.insert(0, Finder(watch, seen))
    watch.look_who_is_told = make_listener(watch.changed.add)
    atexit.register(finish)  # the first that is registered runs last
    tell({"ready": sys.version.split()[0]})
