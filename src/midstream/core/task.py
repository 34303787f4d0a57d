"""A task: a question with its gold answer."""

from __future__ import annotations

import re
from hashlib import blake2b

from pydantic import JsonValue

from midstream.core.data import Frozen, leaves

# Names of metadata that may hold an answer, or lead to it: agents do not see them.
_REVEALS = re.compile(r"answer|solution|rationale|explan|rubric|gold|truth|correct|target|label", re.IGNORECASE)


class Task(Frozen):
    """A question with its gold answer.

    Agents never see the answer: a rollout passes them the result of `without_answer`.
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
        """The task as an agent may see it: id, question, and metadata that neither hold an answer nor are named so."""
        gold = {same_question(answer) for answer in self.answers}
        shown = {
            key: value
            for key, value in self.metadata.items()
            if not _REVEALS.search(key) and not any(same_question(str(leaf)) in gold for leaf in leaves(value))
        }
        return Task(id=self.id, question=self.question, answer="", metadata=shown)


def same_question(question: str) -> str:
    """The question in the form in which equal questions are equal: white space and case do not count."""
    return " ".join(question.split()).casefold()


def task_keys(task_id: str, question: str = "") -> set[str]:
    """Return the keys that identify a task wherever it is from: two tasks that share a key are the same.

    These are a digest of its question, and the one in its id if that is made of the question: a benchmark may add an
    instruction to a question that stands alone in a file.
    """
    digest = task_id.rpartition("-")[2]
    keys = {digest} if re.fullmatch("[0-9a-f]{12}", digest) else set[str]()
    if words := same_question(question):
        keys.add(f"q{blake2b(words.encode('utf-8', 'surrogatepass'), digest_size=8).hexdigest()}")
    return keys
