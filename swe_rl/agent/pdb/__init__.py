"""This package has the debugging agent."""
