"""This package reads data sets of issues in real repositories: SWE-bench and those that follow its format."""
