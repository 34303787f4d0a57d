"""Agents run a task over several turns."""
