"""The run as one page."""
