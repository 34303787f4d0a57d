"""Whether a model can play an agent's roles: `midstream examine`."""
