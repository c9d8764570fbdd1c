"""Checkpoints: written whole or not at all, by one process or by many ranks, read back, exported."""
