"""The rules: one file a noun."""
