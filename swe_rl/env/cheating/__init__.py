"""Finds what an agent tried that would win a reward without solving its task."""
