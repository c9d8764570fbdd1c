"""A chat template is the Jinja text that a checkpoint is saved with. This package writes chats in three formats of ours
piece by piece, and in any other format by the checkpoint's own template."""
