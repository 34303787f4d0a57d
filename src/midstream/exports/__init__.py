"""Trajectories of a run in the formats of trainers, and as tables. `write.py`, `export` writes them."""
