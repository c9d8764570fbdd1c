"""Spreads the model over ranks: meshes, packed rows, attention, and the proof that it computes right."""
