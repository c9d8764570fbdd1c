"""The ranks' end of a weight update."""
