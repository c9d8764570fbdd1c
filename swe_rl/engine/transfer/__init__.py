"""The package is the engines' end of a weight update: which way it takes, and what vLLM's workers load for it."""
