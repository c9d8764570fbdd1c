"""Measures strength: how many wrong patches the tests of an instance reject, made from its gold patch."""
