"""This module has the words that a start and a check say of bubblewrap, the program that isolates commands of
sandbox.kind=process.

Invariants:
- Both say the same words, so that a check's answer is known again where a run is refused.
"""

PROGRAM = "bwrap"
ABSENT = f"there is no `{PROGRAM}` on PATH"
WAY_OUT = (
    "Install bubblewrap (`apt-get install bubblewrap`) and allow user namespaces, use a container engine with "
    "sandbox.kind=docker or podman, or set sandbox.isolation=none to accept this for code that you trust"
)
NEEDED = "only isolated commands can be shown the folders that its tasks need, and isolation"
NEEDED_WAY_OUT = "install bubblewrap (`apt-get install bubblewrap`), or use sandbox=docker or podman"
UNISOLATED = "commands run without isolation, as this user with its files in reach"


def does_not_work(reason: str) -> str:
    return f"does not work on this host: {reason}"
