"""This package reads the files that tasks and answers come in, in one way for the check and for every job."""
