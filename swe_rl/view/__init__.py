"""A server for browsers on this machine that shows run folders, also of runs that go on (`job=view`)."""
