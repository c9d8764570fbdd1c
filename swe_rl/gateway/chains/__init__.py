"""Cuts a session's conversation into chains: which reply a request goes on from, and which role its chain has."""
