"""Graphs for the tool `graph`: how text becomes a graph, and algorithms on it. They import nothing of midstream.

Their source also runs inside the sandbox (`tool.py`), so they may import one another, the standard library and
NetworkX alone.
"""
