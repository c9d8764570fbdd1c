"""The trace store: one SQLite file, one writer thread."""
