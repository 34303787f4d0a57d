"""Endless stateful tasks at five desks: a source of tasks that are dialogues, with exact checks of the state.

Every task is made from a seed. Which split it belongs to is a hash of all that its user says, so no dialogue of one
split can come up in another. A task's metadata is its plan (`session.Plan`): the desks at its beginning, user turns and
the calls that do what they ask; `question` is all that the user says, `answer` the planned calls, both for people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Literal

from pydantic import Field, ValidationError

from midstream.core.data import Frozen
from midstream.core.errors import RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.worlds.desks.dialogue import DeskDialogue, calls_text
from midstream.worlds.desks.planning import CATEGORIES, make_plan, tight
from midstream.worlds.desks.session import DESKS, Plan

SPLITS = {"train": range(67), "validation": range(67, 80), "test": range(80, 100)}  # of 100 tasks
PER_FAMILY = 60  # tasks of an evaluation set that names no number
_MOST_REPEATS = 200  # in a row, of tasks that are there already


class Config(Frozen):
    """Settings of the desks: which categories (`families`) and desks tasks come from, and how hard they are.

    easy: one or two user turns of one goal; standard: two or three, of up to two goals; hard: three to five of two or
    three goals, at two desks. A turn that only completes another is not counted.
    """

    families: tuple[str, ...] = Field(default=CATEGORIES, min_length=1)
    desks: tuple[str, ...] = Field(default=tuple(DESKS), min_length=1)
    difficulty: Literal["easy", "standard", "hard"] = "standard"
    seed: int = 0


class Desks:
    """A `core.protocols.TaskSource` whose tasks are dialogues (`core.dialogue.Dialogues`)."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.families: Sequence[str] = _known(config.families, CATEGORIES, "family", "families")
        _known(config.desks, tuple(DESKS), "desk", "desks")

    def open(self, task: Task, *, seed: int) -> DeskDialogue:
        """A dialogue of a task, with desks of its own. `seed` changes nothing: this user has a plan."""
        try:
            plan = Plan.model_validate(task.metadata)
        except ValidationError as error:
            raise RecipeError(
                f"task {task.id!r} holds no plan: {error.errors()[0]['msg']}",
                cause="it is not of the desks, whose plans stand in the tasks' metadata",
                fix='take tasks of type = "desks"',
            ) from error
        return DeskDialogue(plan)

    def sample(self, split: str, count: int, seed: int, weights: Mapping[str, float] | None = None) -> list[Task]:
        """`count` tasks, families drawn in proportion to `weights` (uniformly without)."""
        draws = Random(derive_seed("desk tasks", self.config.seed, split, seed))
        shares = [weights.get(family, 1.0) for family in self.families] if weights else None
        families = draws.choices(self.families, shares, k=count)
        return [self._task(split, family, draws, f"{split}-{seed}-{i}") for i, family in enumerate(families)]

    def fixed(
        self,
        split: str,
        *,
        seed: int,
        families: Sequence[str] = (),
        per_family: int | None = None,
        count: int | None = None,
    ) -> list[Task]:
        """`per_family` different tasks of each family (or `count`, shared out evenly)."""
        chosen = _known(families or self.families, CATEGORIES, "family", "families")
        if count is not None:
            per_family = -(-count // len(chosen))
        elif per_family is None:
            per_family = PER_FAMILY
        draws = Random(derive_seed("desk set", self.config.seed, split, seed))
        seen: set[str] = set()
        tasks = [task for family in chosen for task in self._different(split, family, per_family, draws, seen)]
        return tasks if count is None else tasks[:count]

    def _different(self, split: str, family: str, count: int, draws: Random, seen: set[str]) -> list[Task]:
        """Tasks whose questions are not among those `seen`, and then are."""
        tasks: list[Task] = []
        repeats = 0
        while len(tasks) < count:
            task = self._task(split, family, draws, f"{split}-{family}-{len(tasks)}")
            if task.question not in seen:
                seen.add(task.question)
                tasks.append(task)
                repeats = 0
            elif (repeats := repeats + 1) == _MOST_REPEATS:
                raise RecipeError(
                    f"only {len(tasks)} different {family!r} tasks were found in the {split} split",
                    cause=f"{count} were asked for, of {len(self.config.desks)} desks",
                    fix="lower `per_family`, name more `desks`, or raise `difficulty`",
                )
        return tasks

    def _task(self, split: str, family: str, draws: Random, task_id: str) -> Task:
        if split not in SPLITS:
            raise RecipeError(
                f"split {split!r} does not exist", cause=f"the desks have {', '.join(SPLITS)}", fix="name one of them"
            )
        while True:
            plan = make_plan(family, self.config.difficulty, self.config.desks, draws)
            question = "\n".join(turn.user for turn in plan.turns)
            if derive_seed("desk split", question) % 100 in SPLITS[split] and tight(plan):
                break
        metadata = plan.model_dump(mode="json")
        return Task(id=task_id, question=question, answer=calls_text(plan), family=family, metadata=metadata)


def _known(names: Sequence[str], there: Sequence[str], what: str, setting: str) -> Sequence[str]:
    """The names themselves, or a `RecipeError` about one that does not exist."""
    for name in names:
        if name not in there:
            raise RecipeError(
                f"the desks have no {what} {name!r}",
                cause=f"there are {', '.join(there)}",
                fix=f"correct `{setting}` in [tasks] or in the evaluation set",
            )
    return names
