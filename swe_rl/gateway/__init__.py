"""The door: a server that speaks the dialects of agents and captures tokens."""
