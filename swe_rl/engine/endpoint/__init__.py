"""The package asks an endpoint of somebody else's for replies in text: an evaluation needs no tokens."""
