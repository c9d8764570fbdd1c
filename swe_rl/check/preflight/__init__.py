"""Preflight: what only the machine can answer before a run starts."""

from swe_rl.check.preflight.run import preflight

__all__ = ["preflight"]
