"""This package decides which engine or trainer rank sits on which GPU."""
