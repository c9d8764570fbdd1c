"""This package talks to SLURM: the job that this process is in, the scripts that make others, and what the queue
says."""
