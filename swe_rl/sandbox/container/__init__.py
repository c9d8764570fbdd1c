"""Sandboxes as containers of Docker or podman."""
