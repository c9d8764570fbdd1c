"""What is to be solved, and was it solved: instances, prompts, workspaces, grading."""
