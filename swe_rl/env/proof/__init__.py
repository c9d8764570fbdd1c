"""Proofs: for each instance, that its gold patch passes here and that a change that fixes nothing does not."""
