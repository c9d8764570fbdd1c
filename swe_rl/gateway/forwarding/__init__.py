"""The package answers the gateway's calls with the replies of an endpoint, without tokens."""
