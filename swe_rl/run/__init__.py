"""The package is a running job: its folder, its parts, its loop, and how it goes on after an end."""
