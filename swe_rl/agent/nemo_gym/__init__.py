"""The agent that plays rows of NeMo-Gym at their resource server, and how it writes an attempt as a response."""
