"""Jobs handed to SLURM: scripts written, submitted, watched, and their results read from the disk."""
