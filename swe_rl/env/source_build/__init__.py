"""Workspaces and images made from source distributions: no registry, no clone."""
