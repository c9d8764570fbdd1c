"""This package knows the cluster around this machine: SLURM, Ray, and the folder where runs and sandbox servers
meet."""
