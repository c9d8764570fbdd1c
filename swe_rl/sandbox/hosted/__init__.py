"""This package makes sandboxes of hosted services, each by the service's own SDK."""
