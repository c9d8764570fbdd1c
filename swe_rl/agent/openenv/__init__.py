"""The agent that plays episodes of an OpenEnv server, and how it reads actions in replies."""
