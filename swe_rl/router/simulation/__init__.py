"""The simulation runs engines and router under a workload, event by event, in virtual time."""
