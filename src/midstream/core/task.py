"""A task: a question with its gold answer."""

from __future__ import annotations

from pydantic import JsonValue

from midstream.core.data import Frozen


class Task(Frozen):
    """A question with its gold answer.

    Agents never see more than the question: a rollout passes them the result of `without_answer`.

    Attributes:
        id: unique in its split.
        question: the text for the agent.
        answer: the gold answer.
        aliases: other answers that count as right.
        reward: type of the reward that scores its benchmark; "" for the recipe's reward.
        family: groups tasks in tables.
        metadata: data for rewards and reports.
    """

    id: str
    question: str
    answer: str
    aliases: tuple[str, ...] = ()
    reward: str = ""
    family: str = ""
    metadata: dict[str, JsonValue] = {}

    @property
    def answers(self) -> tuple[str, ...]:
        """Every answer that counts as right, the gold answer first."""
        return (self.answer, *self.aliases)

    def without_answer(self) -> Task:
        """The task as an agent may see it: only its question (an id may reveal the family)."""
        return Task(id="", question=self.question, answer="")
