"""Shows a run as one page, and runs side by side."""
