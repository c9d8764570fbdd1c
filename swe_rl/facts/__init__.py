"""This package has what follows from a configuration, by which check, plan and run decide: sizes, memory, weights."""
