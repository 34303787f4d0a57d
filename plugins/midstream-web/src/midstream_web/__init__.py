"""Search engines, encyclopedias and web pages as tools."""
