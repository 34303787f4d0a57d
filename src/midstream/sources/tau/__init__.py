"""Serve the tasks of tau-bench from a clone of its repository."""
