"""What things cost: prices, discounts, taxes and shipping, in whole cents."""
