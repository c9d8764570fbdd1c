"""LoRA: the adapter, its files, and both merged into what engines take."""
