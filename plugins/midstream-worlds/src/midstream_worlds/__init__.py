"""Worlds made up for offline use: tasks, tools, programs and scripted models."""
