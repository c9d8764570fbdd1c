"""Advantages and losses that somebody else wrote."""
