"""This package runs mini-swe-agent's own loop at our gateway and in our sandboxes."""
