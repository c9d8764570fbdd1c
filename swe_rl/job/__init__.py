"""Says what is done with the composed configuration: one file a verb."""
