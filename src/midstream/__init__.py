"""midstream: agents made better in the flow from the outcome of their own runs."""

__version__ = "0.1.0"
