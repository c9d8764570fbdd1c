"""The package is the ranks' end of a weight update."""
