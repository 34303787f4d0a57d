"""Rewards judge a finished trajectory."""
