"""The run's folder, events, metrics, progress."""
