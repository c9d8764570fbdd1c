"""Takes advantages and losses that somebody else wrote."""
