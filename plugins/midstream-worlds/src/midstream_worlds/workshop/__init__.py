"""A simulated world in which lessons have known effects."""
