"""Runs untrusted Python."""
