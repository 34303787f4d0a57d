"""Vectors of texts from an OpenAI-compatible embeddings endpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from midstream.core.errors import TransientError
from midstream.engines.openai.engine import OpenAICompatibleEngine
from midstream.engines.openai.limits import Reservation

# Squares of such numbers can be added.
_LARGEST_VALUE = 1e30


class EmbeddingsEngine(OpenAICompatibleEngine):
    """An engine whose server gives vectors."""

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """The vectors of texts, by the server's `/embeddings`. Raises `EngineError`."""
        body = json.dumps({"model": self._model, "input": list(texts)}).encode()

        async def attempt() -> list[list[float]]:
            session, slots = await self._endpoint.join(self, self.config.max_concurrency)
            async with slots, self._send(session, "embeddings", body, Reservation(len(body) // 4)) as (response, _):
                return checked_vectors(await self._read_object(response, self._model), len(texts))

        return await self._retry(attempt, f"{self.name} at {self._base_url}")


def checked_vectors(data: Mapping[str, JsonValue], count: int) -> list[list[float]]:
    """The vectors of `count` texts, of length 1, in an answer of `/embeddings` that came with status 200.

    Raises `TransientError` if they are not `count` vectors of finite numbers, all of one length.
    """
    rows: Any = data.get("data")
    try:
        # A server may answer in another order.
        by_index = {str(row.get("index", place)): row["embedding"] for place, row in enumerate(rows)}
        vectors = [list(by_index[str(place)]) for place in range(count)]
        # The comparison is false for NaN, too.
        finite = all(-_LARGEST_VALUE < value < _LARGEST_VALUE for vector in vectors for value in vector)
    except (AttributeError, KeyError, TypeError):
        rows, vectors, finite = [], [], False
    if not finite or len(rows) != count or not vectors[0] or len({len(vector) for vector in vectors}) != 1:
        raise TransientError(f"the answer does not hold {count} vectors of one length")
    units: list[list[float]] = []
    for vector in vectors:
        # Without it, the squares of tiny numbers would be 0. A vector of zeros stays as it is.
        largest = max(map(abs, vector)) or 1.0
        length = math.hypot(*(number / largest for number in vector)) or 1.0
        units.append([number / largest / length for number in vector])
    return units
