"""Runs as documents of the viewer: read by pages, served, or written to files."""

MAX_MB = 3.0  # about the size that a page in a file may have
