"""The package has the run's folder, events, metrics and progress."""
