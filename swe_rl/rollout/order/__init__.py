"""This package decides in which order instances come to a run: one data set's, or those of several parts."""
