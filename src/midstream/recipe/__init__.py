"""Recipes: schema, registry, checks, and the objects built from them."""
