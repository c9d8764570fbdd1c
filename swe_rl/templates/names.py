"""This module has the names of chat formats, for whoever renders nothing."""

# The checkpoint's own template, whatever it is.
OWN = "own"
# Says which parser reads the replies in each of our formats.
OWN_PARSERS = {"qwen": "hermes", "qwen_plain": "hermes", "qwen_coder": "qwen3_coder"}
TEMPLATES = tuple(OWN_PARSERS)
