"""Which code a configuration names, and what its source alone says against it: for rules, and again before it is made.

Invariants:
- Nothing is imported.
- A name is ours, a `_target_`, or an entry point of an installed package, in this order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from swe_rl.config.choices import ExtensionKind
from swe_rl.config.folders import offered
from swe_rl.config.keys import nearest
from swe_rl.config.parts import Part, starts
from swe_rl.config.schema import Config, Extensible
from swe_rl.config.secrets import mask_value
from swe_rl.extension.code import search_folders
from swe_rl.extension.kinds import CONTRACTS, group_of
from swe_rl.extension.outline import Outline, OutlineError, Parameter, outline


@dataclass(frozen=True, slots=True)
class Foreign:
    """Somebody's own code: `name` as messages have it, `target` its import path, `origin` who says so."""

    kind: ExtensionKind
    name: str
    target: str
    origin: str

    def __str__(self) -> str:
        return f"{self.kind}={self.name} ({self.target})"


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong at a key, and what to type instead."""

    key: str
    message: str
    fix: str


def foreign(kind: ExtensionKind, group: Extensible) -> Foreign | None:
    """None where the name is ours, or nobody's."""
    if group._target_ is not None:
        return Foreign(kind, group.name, group._target_, f"{kind}._target_")
    if (row := offered().get(kind, {}).get(group.name)) is not None:
        return Foreign(kind, row.name, row.target, f"the package {row.package}")
    return None


def foreign_names(kind: ExtensionKind) -> list[str]:
    """Those of installed packages."""
    return list(offered().get(kind, {}))


_PARTS = {  # a rule is asked of every job
    ExtensionKind.env: Part.data,
    ExtensionKind.grader: Part.data,  # who makes an environment makes its grader
    ExtensionKind.agent: Part.rollouts,
    ExtensionKind.reward: Part.rollouts,
    ExtensionKind.advantage: Part.trainer,
    ExtensionKind.loss: Part.trainer,
    ExtensionKind.router: Part.router,
    ExtensionKind.logger: Part.logger,
    ExtensionKind.sandbox: Part.sandboxes,
}


def kinds_read(config: Config) -> list[ExtensionKind]:
    """Those of which the job makes one."""
    started = starts(config)
    return [kind for kind in ExtensionKind if kind not in _PARTS or _PARTS[kind] in started]


def is_foreign(config: Config, kind: ExtensionKind) -> bool:
    return foreign(kind, group_of(config, kind)) is not None


def declared(config: Config, kind: ExtensionKind, attribute: str) -> object:
    """What the chosen extension says of itself; the contract's default where it says nothing or cannot be read."""
    chosen = foreign(kind, group_of(config, kind))
    default = CONTRACTS[kind].declares[attribute]
    if chosen is None:
        return default
    try:
        return outline(chosen.target, search_folders(config.job.code)).declared.get(attribute, default)
    except OutlineError:
        return default


def problems(chosen: Foreign, group: Extensible, code: Sequence[str]) -> Iterator[Problem]:
    """What its source says against it, and against its `params`. `code`: `job.code`."""
    kind, key = chosen.kind, f"{chosen.kind}._target_"
    try:
        sketch = outline(chosen.target, search_folders(code))
    except OutlineError as error:
        yield Problem(key, f"{chosen.target}: {error}", f"{key}=MODULE.CLASS, as Python imports it")
        return
    yield from _of_methods(chosen, sketch)
    if sketch.parameters is not None:
        yield from _of_params(kind, sketch.parameters, group, f"{chosen.target}{_about(sketch)}")


def _about(sketch: Outline) -> str:
    return f" ({sketch.about})" if sketch.about else ""


def _of_methods(chosen: Foreign, sketch: Outline) -> Iterator[Problem]:
    contract, key = CONTRACTS[chosen.kind], f"{chosen.kind}._target_"
    methods = contract.methods_of(sketch.declared.get) if sketch.is_class else {}
    for method, arguments in methods.items():
        call = f"{method}({', '.join(arguments)})"
        if method not in sketch.methods:
            if sketch.complete:
                yield Problem(key, f"{chosen.target} has no method {call}", _write(chosen.kind, call))
            continue
        least, most = sketch.methods[method]
        if not fits(len(arguments), least, most):
            said = f"{chosen.target}: its method {method} cannot be called as {call}"
            yield Problem(key, said, _write(chosen.kind, call))


def fits(number: int, least: int, most: int | None) -> bool:
    return least <= number and (most is None or number <= most)


def _write(kind: ExtensionKind, call: str) -> str:
    return f"write def {call}, see swe_rl.api.{API_NAMES[kind]} and docs/extending.md"


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
            near = nearest(name, mine) or list(mine)
            known = f"it takes {', '.join(mine)}" if mine else "it takes none"
            fix = f"{kind}.params.{near[0]}={mask_value(key, value)}, or leave it out" if near else f"leave {key} out"
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
