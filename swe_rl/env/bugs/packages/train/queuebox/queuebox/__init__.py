"""Queues of jobs: order, priorities, retries and limits. Times are numbers."""
