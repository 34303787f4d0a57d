"""Engines sample tokens from a model, remote or in process."""
