"""Makes environments of OpenEnv servers usable: who they are, their episodes, and instances made of seeds."""
