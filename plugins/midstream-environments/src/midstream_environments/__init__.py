"""Environments of others as tasks of midstream."""
