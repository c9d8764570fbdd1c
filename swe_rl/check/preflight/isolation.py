"""Probes whether bubblewrap works here, where commands are processes of this machine.

Invariants:
- The trial is shorter than that of a start, and asks for the same: namespaces of its own.
- Nothing is said where the rules of a check say it already.
"""

from collections.abc import Iterator

from swe_rl.check.findings import Finding, warning
from swe_rl.check.preflight.system import System
from swe_rl.check.rules.sandbox import broken_isolation, isolates_commands, needs_isolation
from swe_rl.config.schema import Config
from swe_rl.host.bubblewrap import ABSENT, PROGRAM, UNISOLATED, WAY_OUT

_NAMESPACES = (("--unshare-pid",), ("--unshare-user", "--unshare-pid"))  # the first is enough for root


def probe_isolation(config: Config, system: System) -> Iterator[Finding]:
    if not isolates_commands(config):
        return
    absent = system.find_program(PROGRAM) is None
    if absent:
        reason = ABSENT
    else:
        reason = _isolation_refusal(system)
    if not reason:
        return
    if needs_isolation(config):
        if not absent:
            yield broken_isolation("preflight_isolation", config, reason)
    else:
        yield warning("preflight_isolation", "sandbox.isolation", f"{UNISOLATED}: {reason}", WAY_OUT)


def _isolation_refusal(system: System) -> str:
    """Returns why no command can be isolated, or nothing where one can."""
    said = ""
    for namespaces in _NAMESPACES:
        done = system.run([PROGRAM, "--ro-bind", "/", "/", *namespaces, "--", "true"])
        if done is None:
            return ABSENT
        if done.status == 0:
            return ""
        said = f"{done.reason} (status {done.status})"
    return said
