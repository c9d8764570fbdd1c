"""This package holds the tasks and their verdicts: instances, prompts, workspaces and grading."""
