"""Preflight: what only the machine can answer before a run starts."""

from swe_rl.hardware.preflight.run import preflight

__all__ = ["preflight"]
