"""This package is the server of `job=view`, which shows run folders in a browser, also of runs that go on."""
