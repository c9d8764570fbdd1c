"""This module makes the object that a name stands for: ours by its package's table, somebody's own by import.

Invariants:
- A factory gets what its signature names of the things at hand, and `params`, and nothing else.
- Whatever a factory of somebody else does wrong (its import, its signature, its construction, its silence) is one
  ExtensionError that names it and the way out. A factory of ours may raise as it likes.
- Whatever its methods do wrong later is an ExtensionFailure, or the error that the calling package makes of it.
"""

import importlib
import inspect
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import Any, NoReturn

from swe_rl.config.choices import ExtensionKind
from swe_rl.config.ranges import LARGEST_REWARD
from swe_rl.config.schema import Config, Extensible
from swe_rl.errors import RunError, SweRlError, UserError, one_line
from swe_rl.extension.find import Foreign, find_foreign, find_problems, kinds_read
from swe_rl.extension.kinds import CONTRACTS, group_of

# An import or a construction may take this long, because importing torch from a shared disk takes a minute.
LONGEST_S = 120.0
# This is the table of a kind whose option `default` means that nobody's own code is used.
NOBODY = {"default": "swe_rl.extension.make.make_nothing"}


class ExtensionError(UserError):
    """Somebody's own class cannot be used as it is."""


class ExtensionFailure(RunError):
    """A method of somebody's own class raised, or returned what it must not."""


class TooLong(TimeoutError):
    """Somebody's own code was interrupted."""


class _Alarm(BaseException):
    """The time is over. This is no Exception, because the code that hangs may catch those."""


def make_extension(
    kind: ExtensionKind,
    group: Extensible,
    given: Mapping[str, Any],
    ours: Mapping[str, str],
    *,
    limit_s: float = LONGEST_S,
) -> tuple[Any, Foreign | None]:
    """Returns the object that `group` names, and who made it where it is not ours.

    `ours` maps names to import paths of our factories; `given` has what factories may ask for by name. Raises
    ExtensionError where somebody's own code cannot be used, and UserError for a name that nobody has.
    """
    chosen = find_foreign(kind, group)
    if chosen is not None:
        return _make_foreign(chosen, group, given, limit_s), chosen
    if group.name not in ours:
        raise UserError(f"{kind}={group.name} is not known; choose one of {', '.join(ours)}, or name a {kind}._target_")
    module, _, name = ours[group.name].rpartition(".")
    factory = getattr(importlib.import_module(module), name)
    return factory(**_asked_for(factory, given)), None


def make_nothing() -> None:
    """Stands for the option `default` of a kind of which swe_rl has no object: its own code decides."""


def require_importable(config: Config) -> None:
    """Imports all of somebody else's code that the job will use, before anything is started.

    Raises ExtensionError where an import fails, or where a signature does not fit to the configuration.
    """
    for kind in kinds_read(config):
        group = group_of(config, kind)
        if (chosen := find_foreign(kind, group)) is not None:
            _require_static(chosen, group)
            _bind_arguments(chosen, _import_factory(chosen, LONGEST_S), group, dict.fromkeys(CONTRACTS[kind].given))


def _asked_for(factory: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    names = inspect.signature(factory).parameters
    return {name: value for name, value in given.items() if name in names}


def _make_foreign(chosen: Foreign, group: Extensible, given: Mapping[str, Any], limit_s: float) -> Any:
    _require_static(chosen, group)
    factory = _import_factory(chosen, limit_s)
    arguments = _bind_arguments(chosen, factory, group, given)
    with _told_of(chosen, "its construction"), _limit_step(chosen, "its construction", limit_s):
        made = factory(**arguments)
    _require_methods(chosen, made)
    return made


def _require_static(chosen: Foreign, group: Extensible) -> None:
    for problem in find_problems(chosen, group, ()):
        raise ExtensionError(f"{problem.key}: {problem.message}. {problem.fix[:1].upper()}{problem.fix[1:]}.")


def _bind_arguments(
    chosen: Foreign, factory: Callable[..., Any], group: Extensible, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the arguments that the factory is called with. Raises ExtensionError where its signature forbids them."""
    with _told_of(chosen, "its signature"):
        parameters = inspect.signature(factory).parameters
    arguments: dict[str, Any] = {name: value for name, value in given.items() if name in parameters}
    arguments |= {name: _thaw_lists(value) for name, value in group.params.items()}
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        first = (inspect.getdoc(factory) or "").partition("\n")[0]
        about = ""
        if first:
            about = f" ({first.rstrip('.')})"
        raise ExtensionError(
            f"{chosen}{about} cannot be made: {error}. {chosen.kind}.params holds what its signature names, and swe_rl "
            f"gives {', '.join(CONTRACTS[chosen.kind].given) or 'nothing'} where it is named."
        ) from error
    return arguments


def _import_factory(chosen: Foreign, limit_s: float) -> Callable[..., Any]:
    module, _, name = chosen.target.rpartition(".")
    with _told_of(chosen, f"importing {module}"), _limit_step(chosen, f"importing {module}", limit_s):
        imported = importlib.import_module(module)
    factory = getattr(imported, name, None)
    if not callable(factory):
        raise ExtensionError(f"{chosen}: {module} has no class or function {name}.")
    return factory  # type: ignore[no-any-return]


def _require_methods(chosen: Foreign, made: object) -> None:
    """Raises ExtensionError where the object lacks a method, or a method takes other arguments.

    A class was looked at before, by its source. What a function returned was not.
    """
    for method, arguments in CONTRACTS[chosen.kind].methods_of(partial(_read_attribute, made)).items():
        call = f"{method}({', '.join(arguments)})"
        function = getattr(made, method, None)
        if not callable(function):
            raise ExtensionError(
                f"{chosen}: {type(made).__name__} has no method {call}; see swe_rl.api and docs/extending.md."
            )
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError as error:
            raise ExtensionError(f"{chosen}: its method {method} cannot be called as {call}: {error}.") from error
        except ValueError:
            # A compiled method has no signature that could be looked at.
            continue


def _read_attribute(made: object, name: str) -> object:
    return getattr(made, name, None)


def _thaw_lists(value: Any) -> Any:
    """Returns a value of `params` with lists again, because a frozen configuration has tuples in their place."""
    if isinstance(value, dict):
        return {name: _thaw_lists(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_thaw_lists(item) for item in value]
    return value


@contextmanager
def _told_of(chosen: Foreign, what: str) -> Iterator[None]:
    """Turns what the code of the block raises into an ExtensionError that names the class and says `what` raised.

    An error of swe_rl's own keeps its type, because it says more than we can say here.
    """
    try:
        yield
    except SweRlError:
        raise
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError)
        way_out = "try it with `python -c` or its own tests"
        if missing:
            way_out = "pip install it for this Python"
        raise ExtensionError(
            f"{chosen}: {what} raised {type(error).__name__}: {one_line(error)}. {way_out[:1].upper()}{way_out[1:]}."
        ) from error


@contextmanager
def _limit_step(chosen: Foreign, what: str, limit_s: float) -> Iterator[None]:
    try:
        with limit_time(limit_s):
            yield
    except TooLong as error:
        raise ExtensionError(f"{chosen}: {what} {error}. What takes long belongs into its methods.") from None


@contextmanager
def limit_time(limit_s: float) -> Iterator[None]:
    """Ends the block after `limit_s` seconds by raising TooLong in it.

    This works in the main thread only, because signals do; in other threads the block takes its time. It must not be
    used around code that awaits, because the alarm would interrupt somebody else's code.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def too_long(_: int, __: FrameType | None) -> NoReturn:
        raise _Alarm

    before = signal.signal(signal.SIGALRM, too_long)
    left_s, every_s = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    except _Alarm:
        raise TooLong(f"did not end within {limit_s:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, left_s, every_s)
        signal.signal(signal.SIGALRM, before if before is not None else signal.SIG_DFL)


@contextmanager
def failing_as(
    make_error: Callable[[str], Exception], chosen: Foreign, method: str, limit_s: float | None = None
) -> Iterator[None]:
    """Turns what a method of somebody's own class raises in the block into an error of the calling package.

    An error of swe_rl's own keeps its type. With `limit_s` the block is ended as `limit_time` does it.
    """
    try:
        with limit_time(limit_s) if limit_s is not None else nullcontext():
            yield
    except SweRlError:
        raise
    except Exception as error:
        raise make_error(describe_failure(chosen, method, error)) from error


def describe_failure(chosen: Foreign, method: str, error: BaseException) -> str:
    """Returns what a method of somebody's own class did, in words, for the error of the package that called it."""
    if isinstance(error, TooLong):
        return f"{chosen}: its method {method} {error}"
    return f"{chosen}: its method {method} raised {type(error).__name__}: {one_line(error)}"


def describe_value(value: object, max_chars: int = 80) -> str:
    """Returns the start of a value as Python writes it, and its type where that fails."""
    try:
        return f"{value!r:.{max_chars}}"
    except Exception:
        # An integer of more than 4,300 digits has no text.
        return f"a value of type {type(value).__name__} that cannot be shown"


def is_usable_reward(value: object) -> bool:
    """Tells whether a value is a number that can be compared with others: finite, and at most 1e12 in size."""
    return isinstance(value, int | float) and abs(value) <= LARGEST_REWARD


def require_numbers(chosen: Foreign, method: str, values: Sequence[object], number: int) -> list[float]:
    """Returns what a method gave as `number` floats.

    Raises ExtensionFailure unless it is so many numbers of a size that a reward may have.
    """
    numbers = [float(value) for value in values if isinstance(value, int | float) and is_usable_reward(value)]
    if len(numbers) != number or len(values) != number:
        raise ExtensionFailure(
            f"{chosen}: its method {method} must return {number} finite numbers, not {describe_value(values, 120)} "
            f"(the largest size is {LARGEST_REWARD:g})"
        )
    return numbers
