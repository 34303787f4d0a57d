"""The version of midstream."""

__version__ = "0.1.0"
