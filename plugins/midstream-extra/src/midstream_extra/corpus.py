"""Passages of your own documents for tools that are simulated or degraded: true ones, and made-up ones that mislead."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

from midstream.components.component import Context
from midstream.core.answers import words
from midstream.core.errors import RecipeError
from midstream.recipe.check import tasks_config
from midstream.recipe.schema import Recipe
from midstream.tools.local_search import LocalSearchConfig

# Passages from which made-up ones are put together.
_NEIGHBORS = 40
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NAME = re.compile(r"\b[A-Z]\w+")


class Corpus:
    """Documents by their words, as `local_search` finds them, where any word of a query counts."""

    def __init__(self, index: Path | None, context: Context) -> None:
        self._search = LocalSearchConfig(index=index, match="any").build(context)

    async def passages(self, query: str, count: int) -> list[str]:
        """The passages that match best, best first. Raises `ToolServerError` if reading fails."""
        return [f"{title}: {text}" if title else text for title, text in await self._search.find(query, count)]

    async def distractors(self, query: str, count: int, rng: random.Random, answers: Sequence[str] = ()) -> list[str]:
        """Made-up passages that are near the query and hold none of the answers, at most `count`.

        Each is a passage that lacks a word of the query, in which other passages' names and numbers stand for its own.
        Raises `ToolServerError` if reading fails.
        """
        asked = {word for word, _ in words(query)}
        near = await self.passages(query, _NEIGHBORS)
        names = sorted({name for text in near for name in _NAME.findall(text)})
        numbers = sorted({number for text in near for number in NUMBER.findall(text)})
        others = [text for text in near if not asked <= {word for word, _ in words(text)}]
        made = []
        for text in rng.sample(others, len(others)):
            text = NUMBER.sub(lambda found: _other(found[0], numbers, rng), text)
            kept = {name for name in _NAME.findall(text) if name.lower() in asked}
            text = _NAME.sub(lambda name, kept=kept: name[0] if name[0] in kept else _other(name[0], names, rng), text)
            if text not in near and not any(holds(text, answer) for answer in answers):
                made.append(text)
            if len(made) == count:
                break
        return made

    async def close(self) -> None:
        """Close the index."""
        await self._search.close()


def holds(text: str, answer: str) -> bool:
    """Return whether a text holds all words of an answer, in order and without others between; false for no words."""
    ours, theirs = words(text), words(answer)
    starts = range(len(ours) - len(theirs) + 1) if theirs else ()
    return any(ours[start : start + len(theirs)] == theirs for start in starts)


def check_documents(where: str, recipe: Recipe, index: Path | None, *, fix: str = "") -> None:
    """Check that the wrapper at `where` has documents to draw from. Raises `RecipeError`."""
    if index is None and not tasks_config(recipe.tasks).world:
        raise RecipeError(
            f"{where} has no documents to draw from: tasks of type {recipe.tasks.type!r} have none",
            code="world-missing",
            fix=f"midstream index build DOCUMENTS.jsonl, and set {where}.index to the file that it prints{fix}",
        )


def _other(value: str, pool: Sequence[str], rng: random.Random) -> str:
    """Another value of the pool, if it has one."""
    return rng.choice([other for other in pool if other != value] or [value])
