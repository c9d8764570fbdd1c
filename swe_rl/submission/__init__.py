"""This package hands jobs to SLURM: it writes scripts, submits and watches them, and reads their results from the
disk."""
