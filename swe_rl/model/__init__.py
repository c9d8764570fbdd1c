"""Architecture facts, tokenizer and chat rendering, the tiny model."""
