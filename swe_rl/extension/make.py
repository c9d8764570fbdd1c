"""From a name to an object: ours by the table of its room, somebody's own by import, checked before it is used.

Invariants:
- A factory gets what its signature names of the things at hand, and `params`; nothing else.
- Whatever a factory of somebody else does wrong (its import, its signature, its construction, its silence) is one
  ExtensionError that names it and the way out. A factory of ours may raise as it likes.
- Whatever its methods do wrong later is an ExtensionFailure, or what the room's guard makes of it.
"""

import importlib
import inspect
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, NoReturn

from swe_rl.config.choices import ExtensionKind
from swe_rl.config.schema import Config, Extensible
from swe_rl.errors import RunError, SweRlError, UserError, one_line
from swe_rl.extension.find import Foreign, foreign, kinds_read, problems
from swe_rl.extension.kinds import CONTRACTS, group_of

LONGEST_S = 120.0  # for an import or a construction; importing torch from a shared disk takes a minute


class ExtensionError(UserError):
    """Somebody's own class cannot be used as it is."""


class ExtensionFailure(RunError):
    """A method of somebody's own class raised, or returned what it must not."""


class TooLong(TimeoutError):
    """Somebody's own code was interrupted."""


class _Alarm(BaseException):
    """No Exception: the code that hangs may catch those."""


def make(
    kind: ExtensionKind,
    group: Extensible,
    given: Mapping[str, Any],
    ours: Mapping[str, str],
    *,
    limit_s: float = LONGEST_S,
) -> tuple[Any, Foreign | None]:
    """The object that `group` names, and who made it where it is not ours.

    `ours`: name to import path of a factory. `given`: what factories may ask for by name. Raises ExtensionError, and
    UserError for a name that nobody has.
    """
    chosen = foreign(kind, group)
    if chosen is not None:
        return _made(chosen, group, given, limit_s), chosen
    if group.name not in ours:
        raise UserError(f"{kind}={group.name} is not known; choose one of {', '.join(ours)}, or name a {kind}._target_")
    module, _, name = ours[group.name].rpartition(".")
    factory = getattr(importlib.import_module(module), name)
    return factory(**_asked_for(factory, given)), None


def require_importable(config: Config) -> None:
    """What the job will make of somebody else's, imported and held against its signature before anything is started.

    Raises ExtensionError.
    """
    for kind in kinds_read(config):
        group = group_of(config, kind)
        if (chosen := foreign(kind, group)) is not None:
            _require_static(chosen, group)
            _bound(chosen, _imported(chosen, LONGEST_S), group, dict.fromkeys(CONTRACTS[kind].given))


def _asked_for(factory: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    names = inspect.signature(factory).parameters
    return {name: value for name, value in given.items() if name in names}


def _made(chosen: Foreign, group: Extensible, given: Mapping[str, Any], limit_s: float) -> Any:
    _require_static(chosen, group)
    factory = _imported(chosen, limit_s)
    arguments = _bound(chosen, factory, group, given)
    with _told_of(chosen, "its construction"), _within(chosen, "its construction", limit_s):
        made = factory(**arguments)
    _require_methods(chosen, made)
    return made


def _require_static(chosen: Foreign, group: Extensible) -> None:
    for problem in problems(chosen, group, ()):
        raise ExtensionError(f"{problem.key}: {problem.message}. {problem.fix[:1].upper()}{problem.fix[1:]}.")


def _bound(chosen: Foreign, factory: Callable[..., Any], group: Extensible, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the factory is called with. Raises ExtensionError where its signature says otherwise."""
    with _told_of(chosen, "its signature"):
        parameters = inspect.signature(factory).parameters
    arguments: dict[str, Any] = {name: value for name, value in given.items() if name in parameters}
    arguments |= {name: _lists(value) for name, value in group.params.items()}
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        first = (inspect.getdoc(factory) or "").partition("\n")[0]
        about = f" ({first.rstrip('.')})" if first else ""
        raise ExtensionError(
            f"{chosen}{about} cannot be made: {error}. {chosen.kind}.params holds what its signature names, and swe_rl "
            f"gives {', '.join(CONTRACTS[chosen.kind].given) or 'nothing'} where it is named."
        ) from error
    return arguments


def _imported(chosen: Foreign, limit_s: float) -> Callable[..., Any]:
    module, _, name = chosen.target.rpartition(".")
    with _told_of(chosen, f"importing {module}"), _within(chosen, f"importing {module}", limit_s):
        imported = importlib.import_module(module)
    factory = getattr(imported, name, None)
    if not callable(factory):
        raise ExtensionError(f"{chosen}: {module} has no class or function {name}.")
    return factory  # type: ignore[no-any-return]


def _require_methods(chosen: Foreign, made: object) -> None:
    """Raises ExtensionError. A class was looked at before, by its source; what a function returns was not."""
    for method, arguments in CONTRACTS[chosen.kind].methods_of(partial(_attribute, made)).items():
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
        except ValueError:  # compiled, without a signature
            continue


def _attribute(made: object, name: str) -> object:
    return getattr(made, name, None)


def _lists(value: Any) -> Any:
    """Lists as lists: a frozen configuration has tuples."""
    if isinstance(value, dict):
        return {name: _lists(item) for name, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, tuple) else value


@contextmanager
def _told_of(chosen: Foreign, what: str) -> Iterator[None]:
    """An error of its own keeps its type: it says more than we can."""
    try:
        yield
    except SweRlError:
        raise
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError)
        way_out = "pip install it for this Python" if missing else "try it with `python -c` or its own tests"
        raise ExtensionError(
            f"{chosen}: {what} raised {type(error).__name__}: {one_line(error)}. {way_out[:1].upper()}{way_out[1:]}."
        ) from error


@contextmanager
def _within(chosen: Foreign, what: str, limit_s: float) -> Iterator[None]:
    try:
        with within(limit_s):
            yield
    except TooLong as error:
        raise ExtensionError(f"{chosen}: {what} {error}. What takes long belongs into its methods.") from None


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Ends what takes longer, by TooLong. In the main thread only, as signals are: in others all take their time.

    Not for code that awaits: the alarm would meet somebody else's.
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


def failure(chosen: Foreign, method: str, error: BaseException) -> str:
    """What a method of it did, in words: for the error of the room that called it."""
    if isinstance(error, TooLong):
        return f"{chosen}: its method {method} {error}"
    return f"{chosen}: its method {method} raised {type(error).__name__}: {one_line(error)}"


def require_numbers(chosen: Foreign, method: str, values: Sequence[object], number: int) -> list[float]:
    """`number` finite ones. Raises ExtensionFailure."""
    import math

    numbers = [float(value) for value in values if isinstance(value, int | float)]
    if len(numbers) != number or len(values) != number or not all(map(math.isfinite, numbers)):
        raise ExtensionFailure(
            f"{chosen}: its method {method} must return {number} finite numbers, not {one_line(values, 120)}"
        )
    return numbers
