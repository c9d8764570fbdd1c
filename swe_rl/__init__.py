"""swe_rl: post-train software-engineering agents with reinforcement learning, from one Hydra application."""

__version__ = "0.4.0"
