"""This package has sandboxes on other machines: the server, its client, a fleet of them, and OpenHands' protocol."""
