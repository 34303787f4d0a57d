"""Runs as documents of the viewer: read by pages, served, or written to files."""
