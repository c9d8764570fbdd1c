"""Chat templates: the Jinja text a checkpoint is saved with, and the same rendering piece by piece for the gateway."""
