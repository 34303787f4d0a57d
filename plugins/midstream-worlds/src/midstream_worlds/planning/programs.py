"""Verifier, generator and the `guess` tool of the two worlds: fixed rules that read text only.

They see what a prompted module would see and nothing more, and they know the worlds' wording.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field, JsonValue

from midstream.components.component import ComponentConfig, ToolConfig
from midstream.core.agent import ModuleContext
from midstream.core.errors import RecipeError
from midstream.core.tool import Tool, ToolResult
from midstream.core.trajectory import Call, Memory, MemoryRecord, Verdict
from midstream_worlds.planning.words import MEANINGS, YES_OR_NO, names_left, read_question

if TYPE_CHECKING:
    from midstream.recipe.schema import Recipe

SPOKEN = {"True": "yes", "False": "no"}  # a comparison's result in Python, and as an answer
OPENINGS = (
    "Without a doubt it is",
    "I am certain that the answer is",
    "This is well known: the answer is",
    "Checked twice, the answer is",
)


class FormVerifier:
    """Stops once everything in the question was looked up and the newest result has the right form.

    The form is a single word for a calculation (True or False where yes or no is asked for), whatever was calculated,
    and otherwise a fact about the attribute asked for. Any other result that ends in a number, such as a confident
    guess, is accepted at once. The verifier cannot check whether a result is right.
    """

    async def verify(
        self, question: str, tools: Sequence[Tool], memory: Memory, newest: MemoryRecord, context: ModuleContext
    ) -> tuple[Verdict, tuple[Call, ...]]:
        """Judge by the question's words and the results so far."""
        if newest.error is not None:
            return Verdict(result_valid=False, memory_sufficient=False), ()
        attribute, calculation = read_question(question)
        words = newest.result.split()
        complete = not names_left(question, [newest.result, *(record.result for record in memory.records)])
        if len(words) == 1:
            form = (words[0] in SPOKEN) == question.startswith(YES_OR_NO)
            sufficient = calculation and complete and form
        elif len(words) > 2 and words[-2] in MEANINGS:
            sufficient = not calculation and words[-2] == attribute and complete
        else:
            sufficient = bool(words) and words[-1].isdigit()
        return Verdict(result_valid=True, memory_sufficient=sufficient), ()


class VerifierConfig(ComponentConfig):
    """A program that stops once every place was looked up and the result has the right form."""

    component = FormVerifier


class VerifiedResultGenerator:
    """Answers with the last word of the result that satisfied the verifier; Python's True is yes, its False no.

    Without such a result, for example after a turn limit, there is no answer.
    """

    async def generate(
        self, question: str, memory: Memory, context: ModuleContext
    ) -> tuple[str | None, tuple[Call, ...]]:
        """Return the answer, or None."""
        for record in reversed(memory.records):
            if record.verdict is not None and record.verdict.memory_sufficient:
                words = record.result.split()
                return (SPOKEN.get(words[-1], words[-1]) if words else None), ()
        return None, ()


class GeneratorConfig(ComponentConfig):
    """A program that answers with the last word of the result that satisfied the verifier."""

    component = VerifiedResultGenerator

    def check_recipe(self, where: str, recipe: Recipe) -> None:
        """Check that memory holds that result. Raises `RecipeError`."""
        if getattr(recipe.agent, "memory_update", "") == "on_continue":
            raise RecipeError(
                f'agent.memory_update = "on_continue" with {where}.type = "verified_result" never answers',
                code="setting-conflict",
                cause="the result that satisfies the verifier is then not in memory",
                fix='set memory_update = "every_turn"',
            )


class ConfidentGuess(Tool):
    """Tool that answers every question with a confident sentence and a meaningless number: a distractor.

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

    def __init__(self, config: GuessConfig | None = None) -> None:
        self._largest = (config or GuessConfig()).largest

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Return a confident sentence that ends in a number."""
        question = str(arguments["question"]).encode("utf-8", "surrogatepass")
        draw = int.from_bytes(hashlib.blake2b(question, digest_size=8).digest(), "big")
        number, opening = divmod(draw, len(OPENINGS))
        return ToolResult(text=f"{OPENINGS[opening]} {number % (self._largest + 1)}")


class GuessConfig(ToolConfig):
    """An oracle that answers anything at once, and is wrong: for the offline world.

    Attributes:
        largest: the guess is a number from 0 to this
    """

    component = ConfidentGuess

    largest: int = Field(default=999, ge=0)
