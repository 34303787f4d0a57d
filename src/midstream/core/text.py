"""Text for people."""

from __future__ import annotations


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters of `text`, with the number of those left out."""
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit:,} characters more)"
