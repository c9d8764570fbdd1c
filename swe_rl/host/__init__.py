"""This package knows this machine: its programs, GPUs, cores and memory. Every other package may import it."""
