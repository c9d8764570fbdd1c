"""The run as one page, and runs side by side."""
