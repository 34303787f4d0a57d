"""An OpenAI-compatible embeddings endpoint on 127.0.0.1: a text's vector counts its words, hashed, common ones less."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any

from support.api_server import Answer, ApiServer, Asked, Fault

SIZE = 384


class EmbeddingsServer(ApiServer):
    """Answers POST /embeddings, the vectors in another order than the texts, as their `index` says."""

    def __init__(self, *, common: Sequence[str] = (), faults: Sequence[Fault] = ()) -> None:
        super().__init__(self._embed, faults=faults)
        self.common = {*"a an and by in is it of the to was when".split(), *common}

    def _embed(self, asked: Asked) -> Any:
        if asked.method != "POST" or asked.path != "/embeddings" or not asked.body["model"]:
            return Answer(status=404)
        rows = [{"index": place, "embedding": self._vector(text)} for place, text in enumerate(asked.body["input"])]
        return {"object": "list", "data": rows[::-1], "model": asked.body["model"]}

    def _vector(self, text: str) -> list[float]:
        """The text's vector; words of one stem of five letters count as one."""
        counts = [0.0] * SIZE
        for word in re.findall(r"\w+", text.casefold()):
            counts[zlib.crc32(word[:5].encode()) % SIZE] += 0.02 if word in self.common else 1.0
        return counts
