"""Agents, tasks and runs as objects, which the functions of `midstream.api` take and return."""
