"""Benchmarks: loads as agents make them, against this project's gateway, routers and engines, and against others'."""
