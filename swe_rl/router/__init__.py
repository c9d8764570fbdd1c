"""Which engine, and when: a pure policy core."""
