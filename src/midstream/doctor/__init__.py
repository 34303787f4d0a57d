"""Checks of this machine and of models' servers."""
