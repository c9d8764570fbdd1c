"""A training of your own: tasks, an agent, a reward, advantages and a loss."""
