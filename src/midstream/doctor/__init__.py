"""Check what works on this machine, and whether a model can play the roles of an agent."""
