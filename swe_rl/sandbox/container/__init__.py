"""This package makes sandboxes as containers of Docker or podman."""
