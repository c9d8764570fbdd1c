"""Other people's environments, agents, rewards, advantages, losses, routers and loggers: found by name and made."""
