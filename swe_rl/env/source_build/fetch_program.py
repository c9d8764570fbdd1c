"""Downloads a source distribution and runs nothing of it; it is a program for an interpreter that has pip.

`pip download` asks a distribution for its metadata, which runs its setup code. The code of old ones dies on a new
Python, and it is anybody's code. Here pip only finds the file and gets it, with its own settings (index, mirrors,
credentials, certificates), its own cache and its own check of the file's hash.

It is called as `python -I fetch_program.py NAME VERSION FOLDER`. The last line of its output is the file's name. It
ends with status 1 where the index has no such source distribution. With NAME alone it prints the versions that have
one, a line each, the oldest first; those that are no final release are left out.
"""

import hashlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any

# A file is written and hashed in blocks, so that a large one does not fill the memory.
BLOCK_BYTES = 1 << 20
# Sandboxes or a user's other work may set these; they would keep pip from finding a source distribution.
_SETTLED = ("PIP_NO_BINARY", "PIP_ONLY_BINARY", "PIP_NO_INDEX")


def main(name: str, version: str = "", folder: str = "") -> int:
    """Downloads the source distribution, or prints the versions that have one. Returns the exit status."""
    for variable in _SETTLED:
        os.environ.pop(variable, None)
    command = _import_module("pip._internal.commands").create_command("index")
    options, _ = command.parse_args(["versions", "--pre", "--no-binary", name, "--ignore-requires-python", name])
    with command.main_context(), command._build_session(options) as session:
        finder = command._build_package_finder(options=options, session=session, ignore_requires_python=True)
        candidates = finder.find_all_candidates(name)
        if not version:
            archives = {candidate.version for candidate in candidates if not candidate.link.is_wheel}
            final = sorted(known for known in archives if not known.is_prerelease)
            print("\n".join(str(known) for known in final))
            return 0
        wanted = _import_module("pip._vendor.packaging.version").Version(version)
        links = [candidate.link for candidate in candidates if candidate.version == wanted]
        links = sorted((link for link in links if not link.is_wheel), key=lambda link: link.filename)
        if not links:
            print(f"there is no source distribution {name}-{version} among {len(candidates)} files", file=sys.stderr)
            return 1
        _download_link(session, links[0], Path(folder) / Path(links[0].filename).name)
        print(Path(links[0].filename).name)
    return 0


def _download_link(session: Any, link: Any, path: Path) -> None:
    """Writes the file that the link names. Raises ValueError for a file of another hash than the index says."""
    algorithm = link.hash_name
    digest = hashlib.new(algorithm) if algorithm else None
    answer = session.get(link.url_without_fragment, headers={"Accept-Encoding": "identity"}, stream=True)
    answer.raise_for_status()
    with path.open("wb") as file:
        for block in answer.iter_content(BLOCK_BYTES):
            file.write(block)
            if digest is not None:
                digest.update(block)
    if digest is not None and digest.hexdigest() != link.hash:
        raise ValueError(f"{link.url_without_fragment} is not the file that the index describes ({algorithm})")


def _import_module(name: str) -> Any:
    return importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
