"""The router decides which engine answers a request, and when. It is a policy without clock or I/O."""
