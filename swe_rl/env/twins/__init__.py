"""Makes poisoned twins: tests that make the same calls as a test that counts, and expect something else."""
