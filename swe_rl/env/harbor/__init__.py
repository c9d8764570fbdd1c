"""This package reads task folders in the Harbor format.

Their answer is what the sandbox's files look like afterwards.
"""
