"""Offline worlds that generate endless verifiable tasks."""
