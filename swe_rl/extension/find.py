"""This module finds the code that a configuration names, and says what speaks against it by its source alone.

Rules ask before a run starts, and the maker asks again before it makes the object.

Invariants:
- Nothing is imported.
- A name is ours, a `_target_`, or an entry point of an installed package, in this order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from swe_rl.config.choices import ExtensionKind
from swe_rl.config.folders import find_offered
from swe_rl.config.keys import nearest_words
from swe_rl.config.parts import Part, started_parts
from swe_rl.config.schema import Config, Extensible
from swe_rl.config.secrets import mask_value
from swe_rl.extension.code import search_folders
from swe_rl.extension.kinds import CONTRACTS, group_of
from swe_rl.extension.outline import Outline, OutlineError, Parameter, read_outline


@dataclass(frozen=True, slots=True)
class Foreign:
    """This record names somebody's own code: its name in messages, its import path (`target`), and who says so."""

    kind: ExtensionKind
    name: str
    target: str
    origin: str

    def __str__(self) -> str:
        return f"{self.kind}={self.name} ({self.target})"


@dataclass(frozen=True, slots=True)
class Problem:
    """This record says what is wrong at a key, and what to type instead."""

    key: str
    message: str
    fix: str


def find_foreign(kind: ExtensionKind, group: Extensible) -> Foreign | None:
    """Returns somebody's own code that the group names, or None where the name is ours, or nobody's."""
    if group._target_ is not None:
        return Foreign(kind, group.name, group._target_, f"{kind}._target_")
    if (row := find_offered().get(kind, {}).get(group.name)) is not None:
        return Foreign(kind, row.name, row.target, f"the package {row.package}")
    return None


def foreign_names(kind: ExtensionKind) -> list[str]:
    """Returns the names that installed packages offer for a kind."""
    return list(find_offered().get(kind, {}))


# A kind is made only by jobs that start its part. A rule has no part, because every job asks the rules.
_PARTS = {
    ExtensionKind.env: Part.data,
    ExtensionKind.grader: Part.data,  # A job that makes an environment makes its grader, too.
    ExtensionKind.agent: Part.rollouts,
    ExtensionKind.reward: Part.rollouts,
    ExtensionKind.advantage: Part.trainer,
    ExtensionKind.loss: Part.trainer,
    ExtensionKind.router: Part.router,
    ExtensionKind.logger: Part.logger,
    ExtensionKind.sandbox: Part.sandboxes,
}


def kinds_read(config: Config) -> list[ExtensionKind]:
    """Returns the kinds of extensions of which the configured job makes one."""
    started = started_parts(config)
    return [kind for kind in ExtensionKind if kind not in _PARTS or _PARTS[kind] in started]


def is_foreign(config: Config, kind: ExtensionKind) -> bool:
    """Tells whether the configuration chooses somebody's own code for this kind."""
    return find_foreign(kind, group_of(config, kind)) is not None


def declared_attribute(config: Config, kind: ExtensionKind, attribute: str) -> object:
    """Returns what the chosen extension says of itself in a class attribute.

    The contract's default is returned where the extension says nothing, or where its source cannot be read.
    """
    chosen = find_foreign(kind, group_of(config, kind))
    default = CONTRACTS[kind].declares[attribute]
    if chosen is None:
        return default
    try:
        return read_outline(chosen.target, search_folders(config.job.code)).declared.get(attribute, default)
    except OutlineError:
        return default


def find_problems(chosen: Foreign, group: Extensible, code: Sequence[str]) -> Iterator[Problem]:
    """Yields what the source of the chosen code says against it, and against its `params`.

    The folders of `code` (`job.code`) are searched first.
    """
    kind = chosen.kind
    key = f"{chosen.kind}._target_"
    try:
        sketch = read_outline(chosen.target, search_folders(code))
    except OutlineError as error:
        yield Problem(key, f"{chosen.target}: {error}", f"{key}=MODULE.CLASS, as Python imports it")
        return
    yield from _of_methods(chosen, sketch)
    if sketch.parameters is not None:
        yield from _of_params(kind, sketch.parameters, group, f"{chosen.target}{_about_text(sketch)}")


def _about_text(sketch: Outline) -> str:
    if not sketch.about:
        return ""
    return f" ({sketch.about})"


def _of_methods(chosen: Foreign, sketch: Outline) -> Iterator[Problem]:
    contract = CONTRACTS[chosen.kind]
    key = f"{chosen.kind}._target_"
    methods = contract.methods_of(sketch.declared.get) if sketch.is_class else {}
    for method, arguments in methods.items():
        call = f"{method}({', '.join(arguments)})"
        if method not in sketch.methods:
            if sketch.complete:
                yield Problem(key, f"{chosen.target} has no method {call}", _suggest_method(chosen.kind, call))
            continue
        least, most = sketch.methods[method]
        if not fits_count(len(arguments), least, most):
            said = f"{chosen.target}: its method {method} cannot be called as {call}"
            yield Problem(key, said, _suggest_method(chosen.kind, call))


def fits_count(number: int, least: int, most: int | None) -> bool:
    """Tells whether a number of arguments is in the range; a `most` of None means that there is no upper bound."""
    return least <= number and (most is None or number <= most)


def _suggest_method(kind: ExtensionKind, call: str) -> str:
    return f"write def {call}, see swe_rl.api.{API_NAMES[kind]} and docs/extending.md"


# Each protocol in swe_rl.api has the name of its kind, but for the provider of sandboxes, which makes several of them.
API_NAMES = {kind: str(kind).capitalize() for kind in ExtensionKind} | {ExtensionKind.sandbox: "Sandboxes"}


def _of_params(kind: ExtensionKind, parameters: Sequence[Parameter], group: Extensible, who: str) -> Iterator[Problem]:
    given = CONTRACTS[kind].given
    mine = {parameter.name: parameter for parameter in parameters if parameter.name not in given}
    for name, value in group.params.items():
        key = f"{kind}.params.{name}"
        if name in mine:
            if not _is_of(value, mine[name].plain):
                wanted = mine[name].plain
                assert wanted is not None
                yield Problem(
                    key, f"{who} takes {wanted.__name__} for {name}, not {mask_value(key, value)!r}", f"{key}=VALUE"
                )
        elif name in given:
            yield Problem(key, f"{who} gets {name} from swe_rl, wherever its signature names it", f"leave {key} out")
        else:
            near = nearest_words(name, mine) or list(mine)
            known = "it takes none"
            if mine:
                known = f"it takes {', '.join(mine)}"
            if near:
                fix = f"{kind}.params.{near[0]}={mask_value(key, value)}, or leave it out"
            else:
                fix = f"leave {key} out"
            yield Problem(key, f"{who} takes no {name}: {known}", fix)
    missing = [name for name, parameter in mine.items() if parameter.required and name not in group.params]
    for name in missing:
        yield Problem(f"{kind}.params", f"{who} needs {name}", f"+{kind}.params.{name}=VALUE, or in the option's file")


def _is_of(value: object, wanted: type | None) -> bool:
    if wanted is None:
        return True
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
