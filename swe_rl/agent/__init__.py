"""Agents act on a task: programs that see an OpenAI base URL, their task and their sandbox, and nothing else."""
