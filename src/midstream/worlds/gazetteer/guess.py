"""A tool that is always sure and never knows: the distractor a planner has to learn to leave alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pydantic import Field, JsonValue

from midstream.core.data import Frozen
from midstream.core.protocols import ToolResult

OPENINGS = (
    "Without a doubt it is",
    "I am certain that the answer is",
    "This is well known: the answer is",
    "Checked twice, the answer is",
)


class Config(Frozen):
    """Settings of the guess: its number is between 0 and `largest`."""

    largest: int = Field(default=999, ge=0)


class ConfidentGuess:
    """Answers every question at once with a sentence that sounds sure and a number that means nothing.

    Sentence and number come from a hash of the question's text: the tool has no knowledge, sees no gold answer, is
    right only by luck, and gives the same answer to the same text on every machine. Its description promises the
    opposite, as a bad tool's does; only outcomes can teach a planner better.
    """

    name = "guess"
    description = "An expert oracle: gives an instant, confident answer to any question."
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"question": {"type": "string", "description": "the question to answer"}},
        "required": ["question"],
        "additionalProperties": False,
    }
    timeout_s = 5.0
    output_tokens = 100

    def __init__(self, config: Config | None = None) -> None:
        self._largest = (config or Config()).largest

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """A sure sentence that ends in a number."""
        question = str(arguments["question"]).encode("utf-8", "surrogatepass")
        draw = int.from_bytes(hashlib.blake2b(question, digest_size=8).digest(), "big")
        number, opening = divmod(draw, len(OPENINGS))
        return ToolResult(text=f"{OPENINGS[opening]} {number % (self._largest + 1)}")

    async def close(self) -> None:
        """Nothing to release."""
