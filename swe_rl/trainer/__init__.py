"""Turns rows into new weights: it has the policy, its ranks and its checkpoints."""
