"""Finds the files of a row that no patch may change, and puts them back before the tests."""
