"""Sample from a model in this process."""
