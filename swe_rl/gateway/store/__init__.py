"""The trace store has one SQLite file and one writer thread."""
