"""Compares runs side by side."""
