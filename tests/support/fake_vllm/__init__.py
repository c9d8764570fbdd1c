"""A vLLM server without vLLM."""
