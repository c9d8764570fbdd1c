"""This package holds the embedded instances: small packages with injected bugs, in SWE-bench's record format."""
