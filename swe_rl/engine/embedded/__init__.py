"""The package is the embedded engine: torch on the CPU, in a thread of this process."""
