"""Checks of this machine, and of a model's ability to play the roles of an agent."""
