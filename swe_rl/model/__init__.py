"""This package has a model's facts, its tokenizer and chat rendering, and the tiny model."""
