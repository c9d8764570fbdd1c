"""This module has the labels of hosted sandboxes: their names, and the process that asked for each.

Invariants:
- A value has only characters that every service takes. What has others is written as hexadecimal digits.
- Whether a process has ended is known on its own host alone.
"""

import re
from collections.abc import Mapping

from swe_rl.host.process_identity import ProcessIdentity
from swe_rl.sandbox.base import safe_name

_PREFIX = "swe_rl."  # Every label of ours begins so.
_NAME = f"{_PREFIX}sandbox"
_OWNER = f"{_PREFIX}owner"
_HOST = f"{_PREFIX}host"
_MAX_LABEL_CHARS = 63  # No service takes less.
_ENCODED = "x-"  # A value with other characters than any service takes is this and their bytes as hexadecimal digits.
_PLAIN = re.compile(r"(?!x-)[A-Za-z0-9._-]{1,63}")


def make_labels(name: str, owner: str) -> dict[str, str]:
    """Returns the labels of a sandbox that this process asks for."""
    process = ProcessIdentity.mine().record()
    labels = {f"{_PREFIX}{key}": _encode(str(value)) for key, value in process.items()}
    return {**label_of_name(name), _OWNER: safe_name(owner)[:_MAX_LABEL_CHARS], **labels}


def label_of_name(name: str) -> dict[str, str]:
    """Returns the label that one sandbox alone has."""
    return {_NAME: name}


def label_of_host() -> dict[str, str]:
    """Returns the label of all sandboxes that processes of this host asked for."""
    return {_HOST: _encode(ProcessIdentity.mine().host)}


def is_left(labels: Mapping[str, str]) -> bool:
    """Tells whether the process that asked for a sandbox has ended, as far as this host knows."""
    try:
        process = {
            key.removeprefix(_PREFIX): _decode(value) for key, value in labels.items() if key.startswith(_PREFIX)
        }
        return ProcessIdentity.read(process).is_gone()
    except (KeyError, ValueError):
        return False


def _encode(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    return _ENCODED + value.encode().hex()


def _decode(value: str) -> str:
    """Returns what `_encode` was given. Raises ValueError."""
    if not value.startswith(_ENCODED):
        return value
    return bytes.fromhex(value.removeprefix(_ENCODED)).decode()
