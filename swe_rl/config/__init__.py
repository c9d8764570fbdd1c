"""The composed configuration: schema, provenance of every value, rules, plan."""
