"""Refuses an interpreter that is too old before anything is downloaded, with the way out.

Older versions of pip read the packages that an extra needs, and try many of their versions, before they compare
`requires-python`: on Python 3.10 an installation runs for minutes and names no reason. This hook runs first.
It is itself readable to older interpreters.
"""

from __future__ import annotations

import sys
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

OLDEST = (3, 11)


class RefuseOldPython(MetadataHookInterface):
    """It changes nothing in the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        del metadata
        refuse_old_python(sys.version_info[:2])


def refuse_old_python(version: tuple[int, ...]) -> None:
    """Ends the build with a message if `version` is older than the oldest one that swe_rl runs on."""
    if version < OLDEST:
        needed = ".".join(map(str, OLDEST))
        found = ".".join(map(str, version))
        sys.exit(
            f"swe_rl needs Python {needed} or newer, and this is Python {found}. Make the environment with a newer one "
            f"and install again: `python{needed} -m venv .venv`, or `uv venv --seed --python {needed} .venv` if no "
            "newer Python is installed."
        )
