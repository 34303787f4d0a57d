"""A task: a question with its gold answer."""

from __future__ import annotations

from pydantic import JsonValue

from midstream.core.data import Frozen


class Task(Frozen):
    """A question with its gold `answer` and what its reward needs.

    `family` groups tasks in tables; `metadata` is for rewards and reports. No module of an agent ever sees `answer`,
    `family` or `metadata`: the rollout hands agents the result of `without_answer`.
    """

    id: str
    question: str
    answer: str
    family: str = ""
    metadata: dict[str, JsonValue] = {}

    def without_answer(self) -> Task:
        """The task as an agent may see it: its question alone (an id may tell the family)."""
        return Task(id="", question=self.question, answer="")
