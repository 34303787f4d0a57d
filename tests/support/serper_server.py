"""Serper's search on 127.0.0.1: POST /search with a key, answers in its documented shape, faults on demand.

Sources: serper.dev's playground and published schema of its answers (fields organic, answerBox, knowledgeGraph,
searchParameters, credits); {"message": ..., "statusCode": ...} for a wrong key (403) and an empty account (400).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from support.api_server import Answer, ApiServer, Asked, Fault

KEY = "serper-test-key-0123456789abcdef"
NO_CREDIT = Answer(status=400, body=json.dumps({"message": "Not enough credits", "statusCode": 400}))
ANSWER_BOX = {"title": "Height", "answer": "4,167 m", "link": "https://toubkal.example/height", "snippet": "unused"}
KNOWLEDGE_GRAPH = {
    "title": "Toubkal",
    "type": "Mountain in Morocco",
    "imageUrl": "https://images.example/toubkal.png",
    "description": "Toubkal is the highest peak of North Africa.",
    "descriptionSource": "Wikipedia",
    "descriptionLink": "https://en.wikipedia.example/wiki/Toubkal",
    "attributes": {"Elevation": "4,167 m", "First ascent": "1923"},
}


def page(number: int, **fields: Any) -> dict[str, Any]:
    """An organic result."""
    return {
        "title": f"Page {number}",
        "link": f"https://page{number}.example/",
        "snippet": f"What page {number} says.",
        "position": number,
        **fields,
    }


TWO_PAGES = (page(1), page(2))


class SerperServer(ApiServer):
    """Answers every search with `organic`, and what `extra` adds to it; a request without `key` is refused."""

    def __init__(
        self,
        organic: Any = TWO_PAGES,
        *,
        key: str = KEY,
        extra: dict[str, Any] | None = None,
        faults: Sequence[Fault] = (),
    ) -> None:
        super().__init__(self._search, faults=faults)
        self.organic, self.extra, self.key = organic, extra or {}, key

    @property
    def search_url(self) -> str:
        return f"{self.url}/search"

    def _search(self, asked: Asked) -> Any:
        if asked.method != "POST" or asked.path != "/search":
            return Answer(status=404, body='{"message": "Not Found", "statusCode": 404}')
        if asked.headers.get("x-api-key", "") != self.key:
            return Answer(status=403, body='{"message": "Unauthorized.", "statusCode": 403}')
        return {
            "searchParameters": {"type": "search", "engine": "google", **asked.body},
            "organic": self.organic,
            "credits": 1,
            **self.extra,
        }
