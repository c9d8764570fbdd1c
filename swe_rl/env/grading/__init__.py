"""Decides whether an instance was solved: the graders are here, and what they run in a fresh sandbox."""
