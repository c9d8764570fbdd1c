"""The routers that a benchmark compares, from conf/router without Hydra.

An arm is a name of conf/router, with a cap or with keys: `default`, `tr`, `cap:20`, `tr:pause_at=0.9,tick_s=2`.

Invariants:
- An arm without keys is exactly what `router=NAME` composes.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from swe_rl.config.schema import RouterConfig

CONF = Path(__file__).resolve().parent.parent / "conf" / "router"


class ArmError(ValueError):
    """There is no such arm."""


def router_config(arm: str) -> RouterConfig:
    """Raises ArmError."""
    name, _, rest = arm.partition(":")
    values = asdict(RouterConfig()) | _composed(name)
    if rest.isdecimal():
        values["max_programs_per_engine"] = int(rest)
    elif rest:
        for pair in rest.split(","):
            key, equals, value = pair.partition("=")
            if not equals or key not in values:
                raise ArmError(f"arm {arm}: {pair} sets no key of a router ({', '.join(values)})")
            values[key] = yaml.safe_load(value)
    return RouterConfig(**values)


def _composed(name: str) -> dict[str, Any]:
    """As Hydra merges a group's option with the options of its own group that it begins with."""
    path = CONF / f"{name}.yaml"
    if not path.is_file():
        known = sorted(one.stem for one in CONF.glob("*.yaml"))
        raise ArmError(f"arm {name}: not in conf/router, which has {', '.join(known)}")
    own: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    bases = [base for base in own.pop("defaults", []) if base != "_self_"]
    values: dict[str, Any] = {}
    for base in bases:
        values |= _composed(base)
    return values | own
