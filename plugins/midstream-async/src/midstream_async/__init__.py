"""Rollouts that run ahead of training: see README.md."""
