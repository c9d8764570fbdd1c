"""Agents speak one of these dialects at the gateway. Each dialect has a file, and all requests become the same request
and the same turn."""
