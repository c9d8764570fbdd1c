"""What a class or function looks like, read from its source: nothing of it is imported, and so nothing heavy.

Invariants:
- A module is found as Python would find it, in `folders` first; packages around it are not run either.
- What cannot be read from the source (a base class of a compiled module, names made while it runs) is unknown, never
  wrong: `complete` is false, and its maker looks again at the start (`swe_rl/extension/make.py`).
"""

import ast
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from itertools import chain
from pathlib import Path
from typing import Any

from swe_rl.errors import UserError

_DEEPEST = 8  # of names that are imported from one module into the next
Function = ast.FunctionDef | ast.AsyncFunctionDef
_PLAIN = {"int": int, "float": float, "str": str, "bool": bool}


class OutlineError(UserError):
    """There is no such module, or nothing of that name in it; the message goes on from `TARGET: `."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """`plain`: the type that its annotation says, where it is one of int, float, str and bool."""

    name: str
    required: bool
    plain: type | None = None


@dataclass(frozen=True, slots=True)
class Outline:
    """`parameters` of the factory, None where any or unknown ones are taken. `methods`: by name, the numbers of
    arguments that each takes at least and at most (None: any); without those that are only promised (abstract).
    `declared`: class attributes with a constant value. `complete`: nothing of it is hidden elsewhere."""

    target: str
    docstring: str
    parameters: tuple[Parameter, ...] | None
    methods: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    declared: dict[str, object] = field(default_factory=dict)
    complete: bool = True
    is_class: bool = True

    @property
    def about(self) -> str:
        """The docstring's first line, without its full stop."""
        return next(iter(self.docstring.splitlines()), "").strip().rstrip(".")


def outline(target: str, folders: Sequence[str] = ()) -> Outline:
    """Of `my_pkg.agents.MyAgent`; `folders` come before sys.path. Raises OutlineError."""
    return _outline(target, (*folders, *sys.path), _DEEPEST)


def _outline(target: str, path: tuple[str, ...], depth: int) -> Outline:
    module, _, name = target.rpartition(".")
    if not module or not all(part.isidentifier() for part in target.split(".")):
        raise OutlineError("write it as MODULE.NAME, as in my_pkg.agents.MyAgent")
    file = _file_of(module, path)
    if file is None:  # compiled, or made while it runs
        return Outline(target, "", None, complete=False)
    tree = _parsed(file)
    missing = [top for top in _imported(tree) if not is_there(top, path)]
    if missing:
        raise OutlineError(f"{file} imports {missing[0]}, which is not installed for this Python")
    node = _defined(tree, name)
    if isinstance(node, ast.ClassDef):
        return _of_class(target, node, tree, file, path, depth)
    if isinstance(node, Function):
        parameters = _parameters(node.args, skip=0)
        return Outline(target, ast.get_docstring(node) or "", parameters, is_class=False, complete=False)
    elsewhere = _imports(tree, module, file).get(name)
    if elsewhere is not None and depth:
        return _outline(elsewhere, path, depth - 1)
    if node is not None or _has_star(tree):
        return Outline(target, "", None, complete=False)
    names = [item.name for item in tree.body if isinstance(item, ast.ClassDef | Function)]
    raise OutlineError(f"{file} has no {name}; it has {', '.join(names) or 'neither a class nor a function'}")


def _file_of(module: str, path: tuple[str, ...]) -> Path | None:
    """The module's source. Raises OutlineError where there is no such module."""
    places: list[str] | None = list(path)
    parts = module.split(".")
    for number, part in enumerate(parts, 1):
        name = ".".join(parts[:number])
        if number == 1 and name in sys.builtin_module_names:
            return None
        # By its last part: a folder without __init__.py would be looked up below its parent, which is not imported.
        spec = _asked(PathFinder.find_spec, part, places) if places is not None else None
        if spec is None and number == 1:  # an editable installation's own finder; the first part runs nothing
            spec = _asked(importlib.util.find_spec, name)
        if spec is None and number > 1 and places is not None:
            spec = _by_other_finders(name, places)
        if spec is None:
            raise OutlineError(_no_module(name, part, number == 1))
        places = list(spec.submodule_search_locations) if spec.submodule_search_locations is not None else None
    origin = spec.origin if spec is not None else None
    return Path(origin) if origin and origin.endswith(".py") else None


def _by_other_finders(name: str, places: list[str]) -> ModuleSpec | None:
    """Those of editable installations, which know whole names: `importlib.util.find_spec` would run what is above."""
    importers = (_asked(pkgutil.get_importer, place) for place in places)
    below = (_asked(getattr(finder, "find_spec", None), name) for finder in importers)
    others = (_asked(getattr(it, "find_spec", None), name, places) for it in sys.meta_path if it is not PathFinder)
    return next((spec for spec in chain(below, others) if spec is not None), None)


def _asked(find: Any, *names: object) -> Any:
    """None as well where a finder, which anybody may have written, is no function or raises."""
    try:
        return find(*names)
    except Exception:
        return None


def _no_module(name: str, part: str, first: bool) -> str:
    if not first:
        return f"{name.rpartition('.')[0]} has no module {part}"
    return (
        f"there is no package {name} here: job.code=[FOLDER] names the folder that it is in, or pip install it for "
        "this Python"
    )


def _parsed(file: Path) -> ast.Module:
    try:
        return _tree(file, file.stat().st_mtime_ns)
    except SyntaxError as error:
        raise OutlineError(f"{file}, line {error.lineno}, is not Python: {error.msg}") from error
    except (OSError, ValueError) as error:
        raise OutlineError(f"{file} cannot be read: {error}") from error


@cache
def _tree(file: Path, _: int) -> ast.Module:
    return ast.parse(file.read_bytes(), str(file))


def _imported(tree: ast.Module) -> Iterator[str]:
    """Top-level packages that importing the module needs: what stands in no `try` and in no function."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def is_there(top: str, path: Sequence[str]) -> bool:
    """Whether there is such a top-level package or module, which is not imported."""
    if top in sys.modules or BuiltinImporter.find_spec(top) or FrozenImporter.find_spec(top):
        return True
    # The second asks the finders of editable installations, too.
    return (_asked(PathFinder.find_spec, top, list(path)) or _asked(importlib.util.find_spec, top)) is not None


def _defined(tree: ast.Module, name: str) -> ast.stmt | None:
    for node in reversed(tree.body):
        if isinstance(node, ast.ClassDef | Function) and node.name == name:
            return node
        if isinstance(node, ast.Assign) and any(isinstance(it, ast.Name) and it.id == name for it in node.targets):
            return node
    return None


def _imports(tree: ast.Module, module: str, file: Path) -> dict[str, str]:
    """Names that the module takes from others, with where from."""
    names: dict[str, str] = {}
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            names |= {alias.asname or alias.name: f"{source}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
    return names


def _has_star(tree: ast.Module) -> bool:
    stars = [alias.name == "*" for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    return any(stars) or any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body)


def _of_class(
    target: str, node: ast.ClassDef, tree: ast.Module, file: Path, path: tuple[str, ...], depth: int
) -> Outline:
    parameters: tuple[Parameter, ...] | None = ()
    methods: dict[str, tuple[int, int | None]] = {}
    declared: dict[str, object] = {}
    complete = depth > 0
    for base in reversed(node.bases):
        outer = _base(ast.unparse(base).partition("[")[0], target, tree, file, path, depth)
        if outer is None:
            complete = False
        else:
            parameters = outer.parameters
            methods |= outer.methods
            declared |= outer.declared
            complete = complete and outer.complete
    functions = {item.name: item for item in node.body if isinstance(item, Function)}
    methods |= {name: _counts(item) for name, item in functions.items() if not _is_promised(item)}
    declared |= _constants(node)
    if "__init__" in functions:
        parameters = _parameters(functions["__init__"].args, skip=1)
    elif _is_dataclass(node):
        parameters = (*(parameters or ()), *_fields(node))
    elif not complete or node.keywords or node.decorator_list:
        parameters = None
    return Outline(target, ast.get_docstring(node) or "", parameters, methods, declared, complete)


def _base(name: str, target: str, tree: ast.Module, file: Path, path: tuple[str, ...], depth: int) -> Outline | None:
    """None where it cannot be read. Protocol, ABC, Generic and object add nothing."""
    if name.rpartition(".")[2] in ("Protocol", "ABC", "Generic", "object"):
        return Outline(name, "", ())
    module = target.rpartition(".")[0]
    first, dot, rest = name.partition(".")
    there = _imports(tree, module, file).get(first, f"{module}.{first}")
    try:
        return _outline(f"{there}{dot}{rest}", path, depth - 1) if depth else None
    except OutlineError:
        return None


def _is_promised(function: Function) -> bool:
    return any("abstractmethod" in ast.unparse(decorator) for decorator in function.decorator_list)


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _fields(node: ast.ClassDef) -> Iterator[Parameter]:
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            text = ast.unparse(item.annotation)
            if "ClassVar" not in text and "init=False" not in (ast.unparse(item.value) if item.value else ""):
                yield Parameter(item.target.id, item.value is None, _PLAIN.get(text))


def _constants(node: ast.ClassDef) -> dict[str, object]:
    values: dict[str, object] = {}
    for item in node.body:
        if not isinstance(item, ast.Assign | ast.AnnAssign):
            continue
        targets, value = item.targets if isinstance(item, ast.Assign) else [item.target], item.value
        for goal in targets:
            if isinstance(goal, ast.Name) and isinstance(value, ast.Constant | ast.UnaryOp):
                values[goal.id] = ast.literal_eval(value)
    return values


def _parameters(arguments: ast.arguments, *, skip: int) -> tuple[Parameter, ...] | None:
    """None where `**options` takes whatever comes."""
    if arguments.kwarg is not None:
        return None
    plain = [*arguments.posonlyargs, *arguments.args]
    required = len(plain) - len(arguments.defaults)
    rows = [_parameter(argument, number < required) for number, argument in enumerate(plain)][skip:]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return (*rows, *(_parameter(argument, default is None) for argument, default in named))


def _parameter(argument: ast.arg, required: bool) -> Parameter:
    text = ast.unparse(argument.annotation) if argument.annotation is not None else ""
    return Parameter(argument.arg, required, _PLAIN.get(text))


def _counts(function: Function) -> tuple[int, int | None]:
    """How many arguments a call may have, without the object itself; required ones by keyword make it impossible."""
    arguments = function.args
    bound = 0 if any("staticmethod" in ast.unparse(mark) for mark in function.decorator_list) else 1
    most = len(arguments.posonlyargs) + len(arguments.args) - bound
    least = most - len(arguments.defaults)
    if any(default is None for default in arguments.kw_defaults):
        return most + 1, most
    return least, None if arguments.vararg is not None else most
