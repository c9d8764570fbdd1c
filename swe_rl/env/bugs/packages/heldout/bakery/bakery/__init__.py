"""What a bakery reckons with: doughs, ovens and orders."""
