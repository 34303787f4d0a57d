"""Evaluate agents on fixed sets of tasks, say how sure the numbers are, and compare agents."""
