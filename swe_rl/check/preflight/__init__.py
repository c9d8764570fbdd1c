"""The preflight asks what only the machine can answer before a run starts."""
