"""Readings of sensors: series, windows, thresholds and devices."""
