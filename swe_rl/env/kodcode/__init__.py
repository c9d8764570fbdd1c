"""This package reads KodCode: functions to be written, each with a pytest file."""
