"""This package writes and reads files: whole or not at all, by lines, and with named moments for rehearsed kills."""
