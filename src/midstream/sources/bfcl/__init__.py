"""Serve the multi-turn tasks of the Berkeley Function-Calling Leaderboard."""
