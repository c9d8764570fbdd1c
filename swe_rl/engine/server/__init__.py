"""Treats a server that speaks vLLM's HTTP as an engine, whoever started it."""
