"""`job=new`: a package of your own to begin with, `job.kind=agent job.output=my_agent`: that of examples/, renamed.

Invariants:
- What is written works as it is: its own test passes, and a run uses it.
- A folder that is there already is left alone.
"""

import keyword
import re
from pathlib import Path

from swe_rl.config.folders import examples_dir
from swe_rl.config.provenance import Origins
from swe_rl.config.schema import Config
from swe_rl.errors import UserError
from swe_rl.extension.code import is_taken
from swe_rl.host.packages import pip_command


class NewError(UserError):
    """There is no folder to write into, or no name to write."""


def run(config: Config, folder: Path | None, origins: Origins | None = None) -> int:
    """Raises NewError."""
    del folder, origins
    kind = str(config.job.kind)
    target = Path(config.job.output or f"my_{kind}").expanduser().absolute()
    name = target.name
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise NewError(f"job.output={target}: its last part names a Python package: write it as my_{kind}.")
    if target.exists():
        raise NewError(f"job.output={target} is there already; name a new folder.")
    source = examples_dir() / kind
    for path in sorted(source.rglob("*")):
        if path.is_file() and all(map(is_taken, path.relative_to(source).parts)):
            file = target / _renamed(str(path.relative_to(source)), kind, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_renamed(path.read_text(encoding="utf-8"), kind, name), encoding="utf-8")
    print(_next_steps(target, kind, name), flush=True)
    return 0


def _renamed(text: str, kind: str, name: str) -> str:
    """`my_agent` and `MyAgent` become the package's own names."""
    camel = "".join(part.capitalize() for part in name.split("_"))
    return re.sub(rf"\bMy{kind.capitalize()}\b", camel, re.sub(rf"my_{kind}(?![a-z0-9])", name, text))


def _next_steps(target: Path, kind: str, name: str) -> str:
    return "\n".join(
        [
            f"{target}: {name}.py is yours to change; README.md has every command.",
            f"test it:  {pip_command().removesuffix('-m pip').strip()} -m pytest {target}",
            f"check it: python -m swe_rl --config-dir {target}/conf job.code=[{target}] {kind}={name} job=check",
        ]
    )
