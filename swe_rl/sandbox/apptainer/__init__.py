"""Sandboxes by apptainer."""
