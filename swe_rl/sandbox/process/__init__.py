"""This package makes sandboxes of processes of this machine, isolated by bubblewrap where that works."""
