"""This module reads from its source what a class or function looks like; nothing is imported, and so nothing heavy.

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
from swe_rl.files.lines import lines_of

# A name is followed through so many modules that import it from one another; a circle of imports has no end.
_DEEPEST = 8
Function = ast.FunctionDef | ast.AsyncFunctionDef
# What may be a method, but cannot be read, is taken to accept any number of arguments.
_ANY: tuple[int, int | None] = (0, None)
# These decorators leave a class or function as it is written, or make a dataclass of it.
_KEEPING = ("dataclass", "abstractmethod", "staticmethod", "classmethod", "override", "final", "runtime_checkable")
# A class with one of these methods may have others that its source does not show.
_HIDING = ("__getattr__", "__getattribute__", "__new__", "__init_subclass__")
# A module that uses one of these names may make names that its source does not show.
_MAKING = ("locals", "globals", "vars", "exec", "setattr", "__dict__")
# A class body of these statements does no more than to define and to assign.
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Import, ast.ImportFrom, ast.ClassDef, ast.Pass, ast.Delete)
# Values of `params` are compared with an annotation only where it is one of these.
_PLAIN = {"int": int, "float": float, "str": str, "bool": bool}


class OutlineError(UserError):
    """There is no such module, or nothing of that name in it. The message continues a text `TARGET: `."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """This is one parameter; `plain` is the type of its annotation where that is int, float, str or bool."""

    name: str
    required: bool
    plain: type | None = None


@dataclass(frozen=True, slots=True)
class Outline:
    """This record says what a class or function looks like.

    `parameters` are those of the factory, or None where any or unknown ones are taken. `methods` has for each name the
    least and the largest number of arguments (None: any number), without methods that are only promised (abstract).
    `declared` has the class attributes with a constant value. `complete` says that nothing is hidden elsewhere.
    """

    target: str
    docstring: str
    parameters: tuple[Parameter, ...] | None
    methods: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    declared: dict[str, object] = field(default_factory=dict)
    complete: bool = True
    is_class: bool = True

    @property
    def about(self) -> str:
        """Returns the docstring's first line, without its full stop."""
        return next(iter(lines_of(self.docstring, ends=False)), "").strip().rstrip(".")


def read_outline(target: str, folders: Sequence[str] = ()) -> Outline:
    """Returns the outline of a target such as `my_pkg.agents.MyAgent`; `folders` are searched before sys.path.

    Raises OutlineError where there is no such module or name.
    """
    try:
        return _outline_target(target, (*folders, *sys.path), _DEEPEST)
    except (RecursionError, ValueError):
        # The source is nested deeper than Python's parser goes, or it has a number that is too long to be written.
        return Outline(target, "", None, complete=False)


def _outline_target(target: str, path: tuple[str, ...], depth: int) -> Outline:
    module, _, name = target.rpartition(".")
    if not module or not all(part.isidentifier() for part in target.split(".")):
        raise OutlineError("write it as MODULE.NAME, as in my_pkg.agents.MyAgent")
    file = _file_of(module, path)
    if file is None:
        # The module is compiled, or it is made while the program runs, so there is no source to read.
        return Outline(target, "", None, complete=False)
    tree = _parse_file(file)
    missing = [top for top in _imported_packages(tree) if not is_there(top, path)]
    if missing:
        raise OutlineError(f"{file} imports {missing[0]}, which is not installed for this Python")
    node = _find_definition(tree, name)
    if isinstance(node, ast.ClassDef):
        return _of_class(target, node, tree, file, path, depth)
    if isinstance(node, Function):
        parameters = None if node.decorator_list else _read_parameters(node.args, skip=0)
        return Outline(target, ast.get_docstring(node) or "", parameters, is_class=False, complete=False)
    if isinstance(node, ast.Import | ast.ImportFrom):
        elsewhere = _imported_names(tree, module, file).get(name)
    else:
        elsewhere = None
    if elsewhere is not None and depth:
        return _outline_target(elsewhere, path, depth - 1)
    if node is not None or _has_star(tree) or _makes_names(tree):
        return Outline(target, "", None, complete=False)
    names = [item.name for item in tree.body if isinstance(item, ast.ClassDef | Function)]
    raise OutlineError(f"{file} has no {name}; it has {', '.join(names) or 'neither a class nor a function'}")


def _file_of(module: str, path: tuple[str, ...]) -> Path | None:
    """Returns the file with the module's source, or None where a module has none.

    Raises OutlineError where there is no such module.
    """
    places: list[str] | None = list(path)
    parts = module.split(".")
    for number, part in enumerate(parts, 1):
        name = ".".join(parts[:number])
        if number == 1 and name in sys.builtin_module_names:
            return None
        # It asks for the last part alone: for a whole name, a folder without __init__.py would be looked up below its
        # parent, which is not imported.
        spec = _ask_finder(PathFinder.find_spec, part, places) if places is not None else None
        if spec is None and number == 1:
            # An editable installation has a finder of its own. To look for the first part of a name runs no package.
            spec = _ask_finder(importlib.util.find_spec, name)
        if spec is None and number > 1 and places is not None:
            spec = _by_other_finders(name, places)
        if spec is None:
            raise OutlineError(_no_module(name, part, number == 1))
        places = list(spec.submodule_search_locations) if spec.submodule_search_locations is not None else None
    origin = spec.origin if spec is not None else None
    if origin and origin.endswith(".py"):
        return Path(origin)
    return None


def _by_other_finders(name: str, places: list[str]) -> ModuleSpec | None:
    """Returns what the finders of editable installations say, which know whole names; None where none knows this one.

    `importlib.util.find_spec` is not asked, because it would run the packages above.
    """
    importers = (_ask_finder(pkgutil.get_importer, place) for place in places)
    below = (_ask_finder(getattr(finder, "find_spec", None), name) for finder in importers)
    others = (_ask_finder(getattr(it, "find_spec", None), name, places) for it in sys.meta_path if it is not PathFinder)
    return next((spec for spec in chain(below, others) if spec is not None), None)


def _ask_finder(find: Any, *names: object) -> Any:
    """Returns what a finder says, or None where it raises or is no function, because anybody may have written it."""
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


def _parse_file(file: Path) -> ast.Module:
    try:
        return _cached_tree(file, file.stat().st_mtime_ns)
    except SyntaxError as error:
        raise OutlineError(f"{file}, line {error.lineno}, is not Python: {error.msg}") from error
    except (OSError, ValueError) as error:
        raise OutlineError(f"{file} cannot be read: {error}") from error


@cache
def _cached_tree(file: Path, _: int) -> ast.Module:
    return ast.parse(file.read_bytes(), str(file))


def _imported_packages(tree: ast.Module) -> Iterator[str]:
    """Yields the top-level packages that an import of the module needs: those in no `try` and in no function."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def is_there(top: str, path: Sequence[str]) -> bool:
    """Tells whether there is such a top-level package or module, without importing it."""
    if top in sys.modules or BuiltinImporter.find_spec(top) or FrozenImporter.find_spec(top):
        return True
    # The second asks the finders of editable installations, too.
    return (
        _ask_finder(PathFinder.find_spec, top, list(path)) or _ask_finder(importlib.util.find_spec, top)
    ) is not None


def _find_definition(tree: ast.Module, name: str) -> ast.stmt | None:
    """Returns the last statement of the module that may bind the name, or None where there is none."""
    return next((node for node in reversed(tree.body) if name in _bound_names(node)), None)


def _bound_names(statement: ast.stmt) -> set[str]:
    """Returns the names that the statement may bind, here or in a function inside of it."""
    if isinstance(statement, ast.ClassDef | Function):
        return {statement.name}
    nodes = list(ast.walk(statement))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    imported = {node.asname or node.name.partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    plain = (node for node in nodes if not isinstance(node, ast.alias))
    others = (getattr(node, key, None) for node in plain for key in ("name", "rest"))
    return names | imported | {name for name in others if isinstance(name, str)}


def _imported_names(tree: ast.Module, module: str, file: Path) -> dict[str, str]:
    """Returns the names that the module imports from others, each with its import path there."""
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
    # An attribute such as `x.exec` is a method of somebody's own, so only plain names count, and `__dict__`.
    return any(name in _MAKING or attribute == "__dict__" for name, attribute in words)


def _of_class(
    target: str, node: ast.ClassDef, tree: ast.Module, file: Path, path: tuple[str, ...], depth: int
) -> Outline:
    parameters: tuple[Parameter, ...] | None = ()
    methods: dict[str, tuple[int, int | None]] = {}
    declared: dict[str, object] = {}
    complete = depth > 0
    for base in reversed(node.bases):
        outer = _outline_base(ast.unparse(base).partition("[")[0], target, tree, file, path, depth)
        if outer is None:
            complete = False
            parameters = None
        else:
            if outer.parameters != () or "__init__" in outer.methods:
                parameters = outer.parameters
            methods |= outer.methods
            declared |= outer.declared
            complete = complete and outer.complete
    is_plain = _take_body(node, methods, declared) and _keeps_signature(node) and not _makes_names(tree)
    is_plain = is_plain and all("ABCMeta" in ast.unparse(keyword.value) for keyword in node.keywords)
    init = next((item for item in reversed(node.body) if "__init__" in _bound_names(item)), None)
    if not is_plain or any(name in methods for name in _HIDING):
        parameters = None
        complete = False
        methods = dict.fromkeys(methods, _ANY)
    elif init is not None:
        parameters = (
            _read_parameters(init.args, skip=1) if isinstance(init, Function) and _keeps_signature(init) else None
        )
    elif any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        parameters = (*parameters, *_dataclass_fields(node)) if parameters is not None else None
    elif not complete:
        parameters = None
    attributes = (it.attr for it in ast.walk(tree) if isinstance(it, ast.Attribute) and isinstance(it.ctx, ast.Store))
    # Statements such as `Mine.run = run` or `self.run = run` may make a method of any name that they assign.
    methods |= dict.fromkeys(attributes, _ANY)
    return Outline(target, ast.get_docstring(node) or "", parameters, methods, declared, complete)


def _take_body(node: ast.ClassDef, methods: dict[str, tuple[int, int | None]], declared: dict[str, object]) -> bool:
    """Adds what the class body binds, in its order, to `methods` and `declared`.

    Returns False where the body does more than to define and to assign.
    """
    for item in node.body:
        if isinstance(item, Function):
            methods |= {} if _is_promised(item) else {item.name: _argument_counts(item)}
        elif not isinstance(item, ast.AnnAssign) or item.value is not None:
            for name in _bound_names(item):
                methods[name] = _ANY
                declared.pop(name, None)
            for name, value in _class_constants(item).items():
                methods.pop(name)
                declared[name] = value
    return all(isinstance(item, (*_SIMPLE, *get_args(Function))) or _is_constant(item) for item in node.body)


def _is_constant(item: ast.stmt) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)


def _keeps_signature(node: ast.ClassDef | Function) -> bool:
    """Tells whether all decorators leave the node as it is written, or make a dataclass of it."""
    texts = [ast.unparse(decorator) for decorator in node.decorator_list]
    return all(any(name in text for name in _KEEPING) and "init=False" not in text for text in texts)


def _outline_base(
    name: str, target: str, tree: ast.Module, file: Path, path: tuple[str, ...], depth: int
) -> Outline | None:
    """Returns the outline of a base class, or None where it cannot be read.

    Protocol, ABC, Generic and object add nothing, so their outline is empty.
    """
    if name.rpartition(".")[2] in ("Protocol", "ABC", "Generic", "object"):
        return Outline(name, "", ())
    module = target.rpartition(".")[0]
    first, dot, rest = name.partition(".")
    there = _imported_names(tree, module, file).get(first, f"{module}.{first}")
    try:
        if depth:
            return _outline_target(f"{there}{dot}{rest}", path, depth - 1)
        return None
    except OutlineError:
        return None


def _is_promised(function: Function) -> bool:
    return any("abstractmethod" in ast.unparse(decorator) for decorator in function.decorator_list)


def _dataclass_fields(node: ast.ClassDef) -> Iterator[Parameter]:
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            text = ast.unparse(item.annotation)
            if (
                "ClassVar" not in text
                and "KW_ONLY" not in text
                and "init=False" not in (ast.unparse(item.value) if item.value else "")
            ):
                yield Parameter(item.target.id, item.value is None, _PLAIN.get(text))


def _class_constants(item: ast.stmt) -> dict[str, object]:
    targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
    if isinstance(item, ast.Assign | ast.AnnAssign) and item.value is not None:
        # Some values only look like constants: `-LIMIT` is a ValueError here, and `{[]: 1}` is a TypeError.
        with suppress(ValueError, TypeError):
            value = ast.literal_eval(item.value)
            return {goal.id: value for goal in targets if isinstance(goal, ast.Name)}
    return {}


def _read_parameters(arguments: ast.arguments, *, skip: int) -> tuple[Parameter, ...] | None:
    """Returns the parameters of a signature without the first `skip`, or None where `**options` takes any."""
    if arguments.kwarg is not None:
        return None
    plain = [*arguments.posonlyargs, *arguments.args]
    required = len(plain) - len(arguments.defaults)
    rows = [_read_parameter(argument, number < required) for number, argument in enumerate(plain)][skip:]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return (*rows, *(_read_parameter(argument, default is None) for argument, default in named))


def _read_parameter(argument: ast.arg, required: bool) -> Parameter:
    text = ast.unparse(argument.annotation) if argument.annotation is not None else ""
    return Parameter(argument.arg, required, _PLAIN.get(text))


def _argument_counts(function: Function) -> tuple[int, int | None]:
    """Returns the least and the largest number of arguments of a call, without the object itself.

    Calls have no keyword arguments here. So where a keyword is required, the range is made empty and no call fits.
    """
    if not _keeps_signature(function):
        return _ANY
    arguments = function.args
    bound = 0 if any("staticmethod" in ast.unparse(mark) for mark in function.decorator_list) else 1
    most = len(arguments.posonlyargs) + len(arguments.args) - bound
    least = most - len(arguments.defaults)
    if any(default is None for default in arguments.kw_defaults):
        return most + 1, most
    return least, None if arguments.vararg is not None else most
