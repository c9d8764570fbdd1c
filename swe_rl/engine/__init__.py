"""The package has the inference engines behind one interface: token ids in, token ids and log-probabilities out."""
