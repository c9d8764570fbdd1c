"""The shape of the package: one-way imports, no cycles, a docstring in every module. Read from the sources, not run."""

import ast
import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "swe_rl"
GENERATED = ROOT / "env" / "bugs" / "packages"
LAYERS = [
    {"errors", "version", "files", "host"},
    {"templates"},
    {"config"},
    {"extension"},
    {"plan", "dataset", "facts"},
    {"layout"},
    {"check"},
    {"logger", "algo"},
    {"model", "router", "sandbox", "hardware"},
    {"engine", "env", "report"},
    {"gateway", "agent"},
    {"rollout", "trainer"},
    {"submission", "view", "imitation"},
    {"run"},
    {"job"},
    {"cli"},
    {"__main__", "swe_rl", "api", "testing"},  # the doors: the command line, and what other programs import
]
BUDGETS = tomllib.loads((Path(__file__).parent / "budgets.toml").read_text(encoding="utf-8"))
LONG_FILES = {
    "swe_rl.engine.server.engine": 430,  # one statement a line
    "swe_rl.trainer.policy": 409,
}
LONG_FUNCTIONS = {"swe_rl.rollout.collect.collect", "swe_rl.run.session.open_session", "swe_rl.trainer.policy.__init__"}
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FILES = sorted(path for path in ROOT.rglob("*.py") if GENERATED not in path.parents)
MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES
}


def imports(tree, *, deferred, types=False):
    """Returns the modules of swe_rl that a file imports. `deferred`: also inside of functions. `types`: also below
    TYPE_CHECKING, which only the reader and mypy see."""
    found = set()

    def visit(node):
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.expr) or (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not deferred):
            return  # an expression has no statement in it
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                found.add(inner if inner in MODULES else str(node.module))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return {name for name in found if name.partition(".")[0] == "swe_rl"}


def package(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


@pytest.fixture(scope="module", autouse=True)
def parsed_once():
    yield
    trees.cache_clear()  # of millions of objects


@cache
def trees():
    return {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}


@cache
def graph(*, deferred, types=False):
    return {module: imports(tree, deferred=deferred, types=types) - {module} for module, tree in trees().items()}


def cycle(edges):
    """One cycle as a list of nodes, or an empty list."""
    done, path = set(), []

    def walk(node):
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        path.append(node)
        for target in sorted(edges.get(node, ())):
            if found := walk(target):
                return found
        path.pop()
        done.add(node)
        return []

    return next((found for node in sorted(edges) if (found := walk(node))), [])


def test_the_cycle_finder_finds():
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_every_package_has_a_layer():
    assert {package(module) for module in MODULES} <= RANK.keys()


def test_imports_point_down():
    """Deferred imports and those for types count: postponing one does not turn the arrow."""
    upward = [
        f"{module} -> {target}"
        for module, targets in graph(deferred=True, types=True).items()
        for target in targets
        if RANK[package(target)] > RANK[package(module)]
    ]
    assert upward == []


def test_the_architecture_page_has_packages_in_the_order_of_their_imports():
    page = (ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = page.partition("## The rooms")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", rooms, re.MULTILINE)
    assert {*RANK} - {*rows} <= {"version", "api", "testing", "swe_rl", "__main__"}
    upward = [
        f"{module} -> {target}"
        for module, targets in graph(deferred=True, types=True).items()
        for target in targets
        if package(module) in rows
        and package(target) in rows
        and rows.index(package(target)) < rows.index(package(module))
    ]
    assert upward == []


def test_packages_of_one_layer_do_not_import_in_a_circle():
    edges = {}
    for module, targets in graph(deferred=True, types=True).items():
        edges.setdefault(package(module), set()).update(package(target) for target in targets)
    assert cycle({name: targets - {name} for name, targets in edges.items()}) == []


def test_modules_have_no_import_cycle():
    """Deferred imports count, and those for types: who reads one module of a circle has to read them all."""
    assert cycle(graph(deferred=True, types=True)) == []


def test_an_import_for_types_counts_where_it_is_asked_for():
    tree = ast.parse("if TYPE_CHECKING:\n    from swe_rl.errors import RunError\nimport swe_rl.version")
    assert imports(tree, deferred=True) == {"swe_rl.version"}
    assert imports(tree, deferred=True, types=True) == {"swe_rl.version", "swe_rl.errors"}


def chain(edges):
    """The longest way down, from a module to what it imports and on."""

    @cache
    def below(module):
        return (module, *max((below(target) for target in edges.get(module, ())), key=len, default=()))

    return max(map(below, edges), key=len)


def test_the_chain_finder_finds():
    assert chain({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == ("a", "b", "c")


def test_the_chain_of_imports_is_short():
    longest = chain(graph(deferred=False))
    assert len(longest) <= 12, longest


def statements(tree):
    """Counts statements rather than lines: a bound on lines would pay for dense code."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree))


def public_names(tree):
    """Counts the functions and classes of a module that other modules may use."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return sum(isinstance(node, definitions) and not node.name.startswith("_") for node in tree.body)


def test_packages_keep_to_their_budgets():
    """A package may grow by a tenth. Whoever needs more writes the reason beside its budget in tests/budgets.toml."""
    sizes = {}
    for module, tree in trees().items():
        size = sizes.setdefault(package(module), Counter())
        size["statements"] += statements(tree)
        size["public_names"] += public_names(tree)
    assert sizes.keys() == BUDGETS.keys()
    over = [
        f"{name} has {size[what]} {what}, and its budget is {BUDGETS[name][what]}"
        for name, size in sizes.items()
        for what in ("statements", "public_names")
        if size[what] > 1.1 * BUDGETS[name][what]
    ]
    assert over == []


def test_files_are_short():
    """The schema is one table. The other files were longer when the limit came, and may only become shorter."""
    longer = {"swe_rl.config.schema"} | LONG_FILES.keys()
    lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in MODULES.items()}
    assert {module: number for module, number in lines.items() if number > 400 and module not in longer} == {}
    assert {module: lines[module] for module, limit in LONG_FILES.items() if lines[module] > limit} == {}


def test_functions_are_short():
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    long = [
        f"{module}.{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, functions)
        and node.end_lineno - node.lineno >= 60
        and f"{module}.{node.name}" not in LONG_FUNCTIONS
    ]
    assert long == []


def bound_name(node):
    """Of a variable that gets a value, and of a parameter."""
    if isinstance(node, ast.Name):
        return node.id if isinstance(node.ctx, ast.Store) else None
    return node.arg if isinstance(node, ast.arg) else None


def test_pronouns_only_become_fewer():
    """A variable is called by what it holds: docs/vocabulary.md. Lower the bound when there are fewer."""
    pronouns = {"one", "found", "own", "told"}
    stored = (bound_name(node) for tree in trees().values() for node in ast.walk(tree))
    assert sum(name in pronouns for name in stored) <= 3


def test_no_folder_is_crowded():
    crowds = Counter(path.parent for path in FILES)
    assert {str(folder): number for folder, number in crowds.items() if number > 22} == {}


def test_hydras_private_modules_are_imported_in_one_file():
    """They may change with any version of Hydra."""
    private = re.compile(r"\bhydra(?:\.\w+)*\._|\bhydra_plugins\b")
    names = [module for module, path in MODULES.items() if private.search(path.read_text(encoding="utf-8"))]
    assert names == ["swe_rl.config.hydra_internals"]


def test_every_module_has_a_docstring():
    docstrings = {module: ast.get_docstring(tree) or "" for module, tree in trees().items()}
    assert [module for module, docstring in docstrings.items() if len(docstring) <= 10] == []
