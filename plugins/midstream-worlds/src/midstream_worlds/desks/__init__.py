"""Simulated desks with state, and dialogues with a user who wants things done there."""
