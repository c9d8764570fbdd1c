"""Dishes: amounts, recipes, the pantry and a shopping list."""
