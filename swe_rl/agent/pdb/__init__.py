"""The debugging agent."""
