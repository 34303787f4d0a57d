"""Recipes of this package."""
