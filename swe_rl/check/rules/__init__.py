"""This package has the rules, in one file for each noun."""
