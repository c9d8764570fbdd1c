"""This package answers keys that are spelled wrongly, or as other systems spell them."""
