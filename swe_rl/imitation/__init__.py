"""Data that `job=sft` imitates: recorded conversations of many formats, chosen, encoded, and put into an order."""
