"""Small tools for text: words, wrapping, slugs and marks."""
