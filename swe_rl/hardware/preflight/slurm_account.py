"""SLURM's accounts and qualities of service: what the configuration names is the user's to use.

Invariants:
- Silent where the cluster keeps no accounts, or none for this user.
"""

from collections.abc import Iterator
from difflib import get_close_matches

from swe_rl.config.findings import Finding, error
from swe_rl.config.schema import Config
from swe_rl.hardware.preflight.system import System


def ask(config: Config, system: System) -> Iterator[Finding]:
    hardware = config.hardware
    if hardware.partition is None or (hardware.account is None and hardware.qos is None):
        return
    command = ["sacctmgr", "-n", "-P", "show", "assoc", f"user={system.user[0]}", "format=account,qos"]
    done = system.run(command)
    if done is None or done.status != 0:
        return
    rows = [line.split("|") for line in done.stdout.splitlines() if line.strip()]
    accounts = sorted({row[0] for row in rows if row[0]})
    if hardware.account is not None and accounts and hardware.account not in accounts:
        yield _not_yours("account", hardware.account, accounts)
        return
    mine = [row for row in rows if len(row) > 1 and hardware.account in (None, row[0])]
    levels = sorted({level for row in mine for level in row[1].split(",") if level})
    if hardware.qos is not None and levels and hardware.qos not in levels:
        yield _not_yours("qos", hardware.qos, levels)


def _not_yours(field: str, value: str, yours: list[str]) -> Finding:
    near = get_close_matches(value, yours, n=1, cutoff=0.4) or yours[:1]
    return error(
        "preflight_account",
        f"hardware.{field}",
        value,
        f"SLURM lets you use {', '.join(yours)}",
        f"hardware.{field}={near[0]}",
    )
