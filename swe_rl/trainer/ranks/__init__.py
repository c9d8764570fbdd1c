"""The trainer as many ranks: processes, steps of SLURM, actors of Ray, and the one object that asks them."""
