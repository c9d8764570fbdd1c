"""Trajectories, groups, collection, failure policy, and traces to training rows."""
