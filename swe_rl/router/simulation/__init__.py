"""A discrete-event simulation of engines and router under a workload, in virtual time."""
