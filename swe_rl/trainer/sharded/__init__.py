"""The model spread over ranks: meshes, packed rows, attention, and the proof that it computes right."""
