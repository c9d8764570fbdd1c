"""Tracks in an order: track data, lists, mixing, ratings."""
