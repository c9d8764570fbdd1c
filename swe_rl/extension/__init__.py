"""This package finds other people's environments, agents, rewards, losses and others by name, and makes them."""
