"""The package has trajectories, groups, their collection, the failure policy, and the way from traces to
training rows.
"""
