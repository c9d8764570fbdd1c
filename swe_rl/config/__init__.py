"""The composed configuration: its schema, its composition, and where each value came from."""
