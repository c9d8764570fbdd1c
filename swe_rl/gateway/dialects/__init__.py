"""The languages that agents speak at the gateway, a file each: all become the same request and the same turn."""
