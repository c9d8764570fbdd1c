"""The shape of the package: one-way imports, no cycles, a docstring in every module. Read from the sources, not run."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "swe_rl"
GENERATED = ROOT / "env" / "bugs" / "packages"
LAYERS = [
    {"errors", "version", "host"},
    {"config"},
    {"extension"},
    {"plan"},
    {"layout"},
    {"check"},
    {"logger", "algo"},
    {"model", "router", "sandbox", "hardware"},
    {"engine", "env", "report"},
    {"gateway", "agent"},
    {"rollout", "trainer"},
    {"submission", "view"},
    {"run"},
    {"job"},
    {"cli"},
    {"__main__", "swe_rl", "api", "testing"},  # the doors: the command line, and what other programs import
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FILES = sorted(path for path in ROOT.rglob("*.py") if GENERATED not in path.parents)
MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES
}


def imports(tree, *, deferred):
    """Modules of swe_rl that a file imports, outside TYPE_CHECKING; `deferred`: those inside functions as well."""
    found = set()

    def visit(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
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
def graph(*, deferred):
    return {module: imports(tree, deferred=deferred) - {module} for module, tree in trees().items()}


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
    """Deferred imports count: postponing one does not turn the arrow."""
    upward = [
        f"{module} -> {target}"
        for module, targets in graph(deferred=True).items()
        for target in targets
        if RANK[package(target)] > RANK[package(module)]
    ]
    assert upward == []


def test_packages_of_one_layer_do_not_import_in_a_circle():
    edges = {}
    for module, targets in graph(deferred=True).items():
        edges.setdefault(package(module), set()).update(package(target) for target in targets)
    assert cycle({name: targets - {name} for name, targets in edges.items()}) == []


def test_modules_have_no_import_cycle():
    """Deferred imports count here, too."""
    assert cycle(graph(deferred=True)) == []


def chain(edges):
    """The longest way down, from a module to what it imports and on."""

    @cache
    def below(module):
        return (module, *max((below(target) for target in edges.get(module, ())), key=len, default=()))

    return max(map(below, edges), key=len)


def test_the_chain_finder_finds():
    assert chain({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == ("a", "b", "c")


def test_the_house_only_shrinks():
    """Lower a bound when the house is below it; DESIGN's goals are 12 imports, 430 files and 48,000 lines."""
    longest = chain(graph(deferred=False))
    assert len(longest) <= 12, longest
    assert len(MODULES) <= 541
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in FILES) <= 82_827


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
