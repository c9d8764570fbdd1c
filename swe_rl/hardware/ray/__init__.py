"""An existing Ray cluster."""
