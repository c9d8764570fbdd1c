"""The machine: probes and placement."""
