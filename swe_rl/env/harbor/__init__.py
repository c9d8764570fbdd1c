"""Task folders in the Harbor format: a sandbox in, and what its files look like afterwards is the answer."""
