"""The engines' end of a weight update: which way it takes, and the parts that vLLM's workers load."""
