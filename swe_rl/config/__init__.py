"""The composed configuration: schema, composition, and where each value came from."""
