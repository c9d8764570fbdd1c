"""A server that speaks vLLM's HTTP: one as an engine, whoever started it."""
