"""Model, optimizer step and checkpoints."""
