"""Refuses a bad configuration before it costs anything: by findings, rules, and probes of the machine."""
