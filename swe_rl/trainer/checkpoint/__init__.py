"""Writes checkpoints whole or not at all, by one process or many ranks, reads them back and exports them."""
