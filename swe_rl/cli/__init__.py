"""This package turns words on the command line into a composed, checked configuration and its job."""
