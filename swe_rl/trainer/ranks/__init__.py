"""The package is the trainer as many ranks: processes, SLURM steps, actors of Ray, and the object that asks them."""
