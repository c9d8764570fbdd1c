"""From rows to new weights: the policy, its ranks, its checkpoints."""
