"""What a running job is: its folder, its parts, its loop, and how it goes on after an end."""
