"""The reflector: a model in three roles, which reads rollouts and proposes operations on the library.

summariser  one rollout: what was done at each step, where it went right or wrong
critic      one group: the summaries with their rewards, the library, the question, the answer if it may be seen
merger      one batch: the groups' operations into one list without repetition or contradiction

Each role's prompt is a file (`prompts/`), laid out for sharing: instructions, then the library, then the question, then
what differs between requests. Its reply is JSON that is checked against a form (`replies.py`); one that cannot be used
is asked for again with what was wrong (`asking.py`). What stays unusable is reported, never dropped in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from midstream.agents.template import PromptTemplate
from midstream.core.prompt_text import to_json
from midstream.core.protocols import Engine
from midstream.core.trajectory import Trajectory
from midstream.practice.asking import ROLES, Answered, Asker, Work
from midstream.practice.ledger import Ledger
from midstream.practice.library import Library, Origin
from midstream.practice.merging import Merged, Proposals
from midstream.practice.operations import Operation
from midstream.practice.replies import (
    MERGE_SCHEMA,
    OPERATIONS_SCHEMA,
    SUMMARY_SCHEMA,
    read_operations,
    read_summary,
)
from midstream.practice.role_prompts import about_answer, about_library, about_rollouts, about_run
from midstream.practice.settings import PracticeConfig
from midstream.practice.transcripts import transcript
from midstream.rollout import Group

__all__ = ["ROLES", "Reflector"]

_RULES = ("words", "modules", "changes", "module", "library", "question")
_LAYOUTS = {
    "summarise": ("question", "answer", "rollout"),
    "contrast": (*_RULES, "answer", "rollouts"),
    "write": _RULES,
    "merge": ("words", "modules", "module", "library", "proposals"),
}


class Reflector:
    """The three roles; `engines` go by their names. It holds no state but what the ledger keeps.

    `RecipeError` for a prompt file that cannot be used. Its methods raise whatever the engines raise once their own
    retries are spent; a `step` is the number of the update.
    """

    def __init__(self, config: PracticeConfig, engines: Mapping[str, Engine], ledger: Ledger, seed: int) -> None:
        self.config = config
        self._asker = Asker(config, engines, ledger, seed)
        self._summariser = self._template("summariser", "summarise")
        self._critic = self._template("critic", "contrast" if config.lessons_from == "rollouts" else "write")
        self._merger = self._template("merger", "merge")

    async def summarise(self, step: int, question: str, trajectory: Trajectory, answer: str | None) -> Answered[str]:
        """What happened in one rollout. `answer` is the gold one, None where no role may see it."""
        values = {"question": to_json(question), "answer": about_answer(answer), "rollout": transcript(trajectory)}
        work = Work("summariser", step, trajectory.task_id, trajectory.rollout_index)
        return await self._asker.ask(work, self._summariser.messages(values), read_summary, SUMMARY_SCHEMA)

    async def contrast(
        self, step: int, group: Group, summaries: Sequence[str | None], library: Library, answer: str | None
    ) -> Answered[list[Operation]]:
        """The semantic advantage of one group. Of a rollout without a summary the reward and the answer are shown."""
        shown = {"answer": about_answer(answer), "rollouts": about_rollouts(group.trajectories, summaries)}
        origin = Origin(update=step, tasks=(group.task.id,), trajectories=tuple(one.id for one in group.trajectories))
        return await self._operations(origin, library, {"question": to_json(group.task.question), **shown})

    async def write(self, step: int, task_id: str, question: str, library: Library) -> Answered[list[Operation]]:
        """Lessons from a question alone, without any rollout: a control."""
        return await self._operations(Origin(update=step, tasks=(task_id,)), library, {"question": to_json(question)})

    async def merge(self, step: int, proposals: Proposals, library: Library) -> Answered[Merged]:
        """One batch's operations made one."""
        values = self._values(library, {"proposals": proposals.shown()})
        work = Work("merger", step)
        said = await self._asker.ask(work, self._merger.messages(values), read_operations, MERGE_SCHEMA)
        merged = None if said.value is None else proposals.merged(said.value, self.config.modules, said.model)
        return Answered(value=merged, unreadable=said.unreadable, model=said.model)

    async def _operations(
        self, origin: Origin, library: Library, shown: Mapping[str, str]
    ) -> Answered[list[Operation]]:
        """Ask the critic about one task, and note of each operation where it came from."""
        work, messages = (
            Work("critic", origin.update, *origin.tasks),
            self._critic.messages(self._values(library, shown)),
        )
        said = await self._asker.ask(work, messages, read_operations, OPERATIONS_SCHEMA)
        if said.value is None:
            return Answered(value=None, unreadable=said.unreadable)
        operations = [
            change.operation(origin.model_copy(update={"model": said.model, "why": change.why}), self.config.modules)
            for change in said.value
        ]
        return Answered(value=operations, unreadable=said.unreadable, model=said.model)

    def _values(self, library: Library, shown: Mapping[str, str]) -> dict[str, str]:
        text = about_library(library, self.config.library.max_tokens)
        return {**about_run(self.config), "library": text, **shown}

    def _template(self, role: str, prompt: str) -> PromptTemplate:
        override = self._asker.config(role).prompt_file
        return PromptTemplate(prompt, _LAYOUTS[prompt], override, room="midstream.practice")
