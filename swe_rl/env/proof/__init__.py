"""This package proves that an instance's gold patch passes here, and that a change that fixes nothing does not."""
