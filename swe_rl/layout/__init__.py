"""Who sits on which GPU."""
