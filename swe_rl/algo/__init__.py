"""Advantages, losses and corrections: pure functions."""
