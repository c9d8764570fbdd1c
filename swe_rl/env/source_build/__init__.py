"""This package makes workspaces and images from source distributions, without a registry and without a clone."""
