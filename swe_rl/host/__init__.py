"""This machine: its programs, GPUs, cores and memory. Every other package may import this one."""
