"""This package makes sandboxes by apptainer."""
