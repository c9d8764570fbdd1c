"""What makes composing quick: trees that are kept, and parts of OmegaConf that are replaced."""
