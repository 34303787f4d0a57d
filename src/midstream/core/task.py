"""A task: a question with its gold answer."""

from __future__ import annotations

from pydantic import JsonValue

from midstream.core.data import Frozen


class Task(Frozen):
    """A question with its gold answer.

    Agents never see more than the question: a rollout passes them the result of `without_answer`.
    """

    id: str  # unique in its split
    question: str
    answer: str  # the gold answer
    aliases: tuple[str, ...] = ()  # other answers that count as right
    reward: str = ""  # type of the reward that scores its benchmark; "" for the recipe's reward
    family: str = ""  # groups tasks in tables
    metadata: dict[str, JsonValue] = {}  # data for rewards and reports

    @property
    def answers(self) -> tuple[str, ...]:
        """Every answer that counts as right, the gold answer first."""
        return (self.answer, *self.aliases)

    def without_answer(self) -> Task:
        """The task as an agent may see it: only its question (an id may reveal the family)."""
        return Task(id="", question=self.question, answer="")
