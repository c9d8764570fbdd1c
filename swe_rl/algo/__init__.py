"""The package has advantages, losses and corrections as pure functions."""
