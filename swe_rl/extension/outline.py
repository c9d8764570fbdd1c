"""What a class or function looks like, read from its source: nothing of it is imported, and so nothing heavy.

Invariants:
- A module is found as Python would find it, in `folders` first; packages around it are not run either.
- What cannot be read from the source (a base class of a compiled module, names made while it runs) is unknown, never
  wrong: `complete` is false, and its maker looks again at the start (`swe_rl/extension/make.py`).
- Whatever may be bound in another way than by a plain definition or a constant counts as bound, to anything.
"""

import ast
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from swe_rl.errors import UserError

_DEEPEST = 8  # of names that are imported from one module into the next
Function = ast.FunctionDef | ast.AsyncFunctionDef
_ANY: tuple[int, int | None] = (0, None)  # arguments of what may be a method
_KEEPING = ("dataclass", "abstractmethod", "staticmethod", "classmethod", "override", "final", "runtime_checkable")
_HIDING = ("__getattr__", "__getattribute__", "__new__", "__init_subclass__")  # methods that bring in others
_MAKING = ("locals", "globals", "vars", "exec", "setattr", "__dict__")  # by which names are made that no source has
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Import, ast.ImportFrom, ast.ClassDef, ast.Pass, ast.Delete)
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
    try:
        return _outline(target, (*folders, *sys.path), _DEEPEST)
    except (RecursionError, ValueError):  # nested as deep as no reader goes, or a number too long to be written
        return Outline(target, "", None, complete=False)


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
        parameters = None if node.decorator_list else _parameters(node.args, skip=0)
        return Outline(target, ast.get_docstring(node) or "", parameters, is_class=False, complete=False)
    elsewhere = _imports(tree, module, file).get(name) if isinstance(node, ast.Import | ast.ImportFrom) else None
    if elsewhere is not None and depth:
        return _outline(elsewhere, path, depth - 1)
    if node is not None or _has_star(tree) or _makes_names(tree):
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
    """The last statement that may bind it."""
    return next((node for node in reversed(tree.body) if name in _bound(node)), None)


def _bound(statement: ast.stmt) -> set[str]:
    """Names that it may bind, here or in a function inside of it."""
    if isinstance(statement, ast.ClassDef | Function):
        return {statement.name}
    nodes = list(ast.walk(statement))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    imported = {node.asname or node.name.partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    plain = (node for node in nodes if not isinstance(node, ast.alias))
    others = (getattr(node, key, None) for node in plain for key in ("name", "rest"))
    return names | imported | {name for name in others if isinstance(name, str)}


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


def _makes_names(tree: ast.Module) -> bool:
    words = ((getattr(node, "id", None), getattr(node, "attr", None)) for node in ast.walk(tree))
    return any(name in _MAKING or attribute == "__dict__" for name, attribute in words)  # x.exec() is somebody's own


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
            complete, parameters = False, None
        else:
            if outer.parameters != () or "__init__" in outer.methods:
                parameters = outer.parameters
            methods |= outer.methods
            declared |= outer.declared
            complete = complete and outer.complete
    is_plain = _take_body(node, methods, declared) and _keeps(node) and not _makes_names(tree)
    is_plain = is_plain and all("ABCMeta" in ast.unparse(keyword.value) for keyword in node.keywords)
    init = next((item for item in reversed(node.body) if "__init__" in _bound(item)), None)
    if not is_plain or any(name in methods for name in _HIDING):
        parameters, complete, methods = None, False, dict.fromkeys(methods, _ANY)
    elif init is not None:
        parameters = _parameters(init.args, skip=1) if isinstance(init, Function) and _keeps(init) else None
    elif any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        parameters = (*parameters, *_fields(node)) if parameters is not None else None
    elif not complete:
        parameters = None
    attributes = (it.attr for it in ast.walk(tree) if isinstance(it, ast.Attribute) and isinstance(it.ctx, ast.Store))
    methods |= dict.fromkeys(attributes, _ANY)  # Mine.run = run, self.run = run
    return Outline(target, ast.get_docstring(node) or "", parameters, methods, declared, complete)


def _take_body(node: ast.ClassDef, methods: dict[str, tuple[int, int | None]], declared: dict[str, object]) -> bool:
    """Puts in what the body binds, in its order. False where it does more than to define and to assign."""
    for item in node.body:
        if isinstance(item, Function):
            methods |= {} if _is_promised(item) else {item.name: _counts(item)}
        elif not isinstance(item, ast.AnnAssign) or item.value is not None:
            for name in _bound(item):
                methods[name] = _ANY
                declared.pop(name, None)
            for name, value in _constants(item).items():
                methods.pop(name)
                declared[name] = value
    return all(isinstance(item, (*_SIMPLE, *get_args(Function))) or _is_constant(item) for item in node.body)


def _is_constant(item: ast.stmt) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)


def _keeps(node: ast.ClassDef | Function) -> bool:
    """Whether its decorators leave it as it is written, or as a dataclass."""
    texts = [ast.unparse(decorator) for decorator in node.decorator_list]
    return all(any(name in text for name in _KEEPING) and "init=False" not in text for text in texts)


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


def _fields(node: ast.ClassDef) -> Iterator[Parameter]:
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            text = ast.unparse(item.annotation)
            if (
                "ClassVar" not in text
                and "KW_ONLY" not in text
                and "init=False" not in (ast.unparse(item.value) if item.value else "")
            ):
                yield Parameter(item.target.id, item.value is None, _PLAIN.get(text))


def _constants(item: ast.stmt) -> dict[str, object]:
    targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
    if isinstance(item, ast.Assign | ast.AnnAssign) and item.value is not None:
        with suppress(ValueError, TypeError):  # -LIMIT; {[]: 1}
            value = ast.literal_eval(item.value)
            return {goal.id: value for goal in targets if isinstance(goal, ast.Name)}
    return {}


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
    if not _keeps(function):
        return _ANY
    arguments = function.args
    bound = 0 if any("staticmethod" in ast.unparse(mark) for mark in function.decorator_list) else 1
    most = len(arguments.posonlyargs) + len(arguments.args) - bound
    least = most - len(arguments.defaults)
    if any(default is None for default in arguments.kw_defaults):
        return most + 1, most
    return least, None if arguments.vararg is not None else most
