"""Sandboxes as processes of this machine, isolated by bubblewrap where that works."""
