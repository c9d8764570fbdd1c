"""The package has the vLLM servers that this run starts, watches and starts again."""
