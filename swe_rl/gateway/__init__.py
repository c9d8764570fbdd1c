"""The door: an OpenAI-compatible server that captures tokens."""
