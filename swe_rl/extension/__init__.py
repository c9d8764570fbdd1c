"""Other people's environments, agents, rewards, losses, routers, rules and others: found by name and made."""
