"""Refuses patches with a module that has the name of an installed package: Python would import it in its place.

Invariants:
- No code of the patch is in the sandbox that is asked. None is asked unless a patch adds a module at an import root.
- A name is the project's own if the repository has it at an import root, or if the known fix brings it.
"""

import re
import shlex

from swe_rl.dataset.instance import Instance
from swe_rl.env.env import Grade, GradeError
from swe_rl.env.patch_files import bytes_of, old_paths, touched_paths
from swe_rl.sandbox.sandbox import SandboxProvider, Workspace, put_files

# Python looks for modules in these folders first: the tree, its sources, the folder of a runner script.
_IMPORT_ROOTS = ("", "src/", "lib/", "tests/", "test/", "testing/", "bin/")
_MODULE = re.compile(
    rf"(?:{'|'.join(_IMPORT_ROOTS)})(?P<name>[A-Za-z_]\w*)(?:/__init__)?(?:\.py|\.pyc|(?:\.[\w-]+)?\.so)"
)
_ASK_S = 60.0
_SHOWN_CHARS = 300
_SAYS = "swe_rl installed "
# The modules are only looked for, on the path: none is imported, and a module that this program has need not have a
# specification (`__main__`). `-I` keeps the repository off the path.
_PROGRAM = f"""
import importlib.machinery, os, sys
with open(sys.argv[1], encoding="utf-8") as file:
    names = file.read().split()
for name in names:
    if any(os.path.exists(root + name + end) for root in sys.argv[2:] for end in ("", ".py")):
        continue
    spec = importlib.machinery.PathFinder.find_spec(name)
    if spec and "-packages" in (spec.origin or ""):
        print({_SAYS!r} + name)
"""
_ASK = """
for python in python python3 /opt/miniconda3/envs/*/bin/python .venv/bin/python; do
  if command -v "$python" >/dev/null; then "$python" -I -c {program} {folder}/names {roots} 2>/dev/null; fi
done
exit 0
"""


async def refuse_installed_names(
    instance: Instance, patch: str, workspace: Workspace, sandboxes: SandboxProvider
) -> Grade | None:
    """Returns the verdict on a patch that gives the name of an installed package to a new module, or None.

    The verdict has the finding `module_refused`. Raises GradeError, SandboxError.
    """
    names = _added_modules(patch)
    if names:
        names -= {instance.project, *_added_modules(instance.patch)}
    taken = await _installed_among(names, instance, workspace, sandboxes) if names else []
    if not taken:
        return None
    shown = ", ".join(taken)[:_SHOWN_CHARS]
    words = f"the patch adds modules with the names of installed packages: {shown}"
    return Grade.failed(instance, words, "module_refused")


async def _installed_among(
    names: set[str], instance: Instance, workspace: Workspace, sandboxes: SandboxProvider
) -> list[str]:
    """Returns those of some names that installed packages have. Raises GradeError, SandboxError."""
    sandbox = await sandboxes.create(workspace, owner=f"names-{instance.instance_id}")
    try:
        folder = await put_files(sandbox, {"names": bytes_of("\n".join(sorted(names)))})
        roots = " ".join(map(shlex.quote, _IMPORT_ROOTS))
        script = _ASK.format(program=shlex.quote(_PROGRAM), folder=shlex.quote(folder), roots=roots)
        answer = await sandbox.exec(script, timeout_s=_ASK_S)
    finally:
        await sandbox.close()
    if answer.exit_code:
        raise GradeError(f"{instance.instance_id}: its installed packages cannot be listed: {answer.output[-300:]}")
    lines = answer.output.split("\n")
    return sorted({line.removeprefix(_SAYS) for line in lines if line.startswith(_SAYS)})


def _added_modules(patch: str) -> set[str]:
    """Returns the names of modules at import roots that a patch adds, and of which it changes no file."""
    added = {module_at_root(path) for path in touched_paths(patch)}
    return added - {module_at_root(path) for path in old_paths(patch)} - {""}


def module_at_root(path: str) -> str:
    """Returns the name by which Python imports a file from an import root, or nothing for any other file."""
    module = _MODULE.fullmatch(path)
    return module["name"] if module else ""
