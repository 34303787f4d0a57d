"""Trajectories of a run in the formats of other tools: trainers, tables, traces. `write.py`, `export` writes them."""
