"""A chat in the format of the checkpoint's own template: what it renders, what it can say, and how its replies read."""
