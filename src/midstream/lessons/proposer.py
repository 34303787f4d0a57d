"""What suggests changes of an agent's texts: a proposer, which gets an update's rollouts and returns operations.

    async def shorter(work):
        text = next(each for each in work.lesson_set.lessons if each.module == "planner.prompt")
        said = await work.ask("Write this shorter, and keep every {{place}} of it:\\n\\n" + text.text)
        return [Operation(kind="modify", id=text.id, text=said)]

Midstream's own reads groups of rollouts side by side (`reflection.py`); packages have others. A proposer may try its
candidates on rollouts (`Work.best`), all with an equal number. What that finds decides nothing: the gate tests what it
returns on tasks of its own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from types import SimpleNamespace
from typing import Any, Protocol

from midstream.components.component import ComponentConfig, Context, Kind, ProposerConfig
from midstream.components.own_settings import OwnFunction, class_or_object
from midstream.core.errors import UsageError
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.text import spoken
from midstream.core.trajectory import Message, Trajectory
from midstream.lessons.lesson_set import LessonSet, tokens
from midstream.lessons.operations import Operation, OperationOutcome, Rules, applied, screened
from midstream.lessons.reflector import Reflector, RoleCall
from midstream.lessons.replies import ParsedReply
from midstream.lessons.runner import Runner
from midstream.lessons.settings import LessonsConfig
from midstream.rollout import Group


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """The changes that a batch suggests: `operations`, in a fixed order. The learner adds the batch's `groups`.

    `uniform` groups were left out because they had no contrast, `broken` ones (by task) for the reason given.
    `left_out` are operations that a role asked for and that go no further, each with the reason. `unreadable` lists the
    replies, or parts of them, that could not be used.
    """

    operations: Sequence[Operation] = ()
    groups: Sequence[Group] = ()
    uniform: int = 0
    broken: dict[str, str] = field(default_factory=dict)
    left_out: Sequence[OperationOutcome] = ()
    unreadable: Sequence[str] = ()

    @property
    def failed(self) -> dict[str, str]:
        """The rollouts that ended with an error, by id, with its text."""
        every = [trajectory for group in self.groups for trajectory in group.trajectories]
        return {trajectory.id: error_of(trajectory) for trajectory in every if not ended(trajectory)}


@dataclass(kw_only=True)
class Work:
    """One update, as a proposer gets it.

    `groups` are the rollouts of the batch's `tasks` with the texts of `lesson_set`, unchanged; empty with
    `lessons_from = "model"`. `rollouts` are left to try candidates with. `name` is the proposer's, for seeds and
    records. `ask` and `play` count their calls: make them in an order that does not depend on time, or a resumed run
    repeats them.
    """

    name: str
    step: int
    seed: int
    tasks: Sequence[Task]
    groups: Sequence[Group]
    lesson_set: LessonSet
    config: LessonsConfig
    rules: Rules
    reflector: Reflector
    runner: Runner
    rollouts: int
    _asked: int = 0
    _played: int = 0

    async def ask(self, prompt: str) -> str:
        """The reply of the critic's model, without its thoughts; an equal prompt is asked again.

        Raises `EngineError` if the engine failed, after its own retries.
        """
        self._asked += 1
        purpose = RoleCall("critic", self.step, f"{self.name} {self._asked}")

        def read(reply: str, repair: bool) -> ParsedReply[str]:
            text = spoken(reply).strip()
            return ParsedReply(value=text) if text else ParsedReply(problem="it holds no text")

        answer = await self.reflector.ask(purpose, (Message(role="user", content=prompt),), read)
        return answer.value or ""

    def changed(self, operations: Sequence[Operation]) -> LessonSet | None:
        """The lesson set with the sound ones of these operations; None if none is."""
        moved, outcomes = screened(self.lesson_set, operations, self.rules)
        sound = [outcome.operation for outcome in outcomes if not outcome.refused]
        return applied(moved, sound) if sound else None

    async def play(self, lesson_set: LessonSet, tasks: Sequence[Task], group_size: int = 1) -> list[Group]:
        """Run tasks with the texts of a lesson set, each `group_size` times.

        Raises `BudgetError` if a limit of the run prevented a rollout, `UsageError` beyond `rollouts`.
        """
        if (wanted := len(tasks) * group_size) > self.rollouts:
            what = f"proposer {self.name!r} wants {wanted} rollouts, and has {self.rollouts} of this update left"
            raise UsageError(what, code="proposer-limit", fix="raise lessons.search_rollouts")
        self.rollouts -= wanted
        self._played += 1
        scope = f"try-{self.step}-{self.name}-{self._played}"
        runner, pool = self.runner, [each.reward for group in self.groups for each in group.trajectories if each.reward]
        groups = await replace(runner, shuffle=False).groups(scope, tasks, lesson_set, group_size)
        if not (runner.shuffle and pool):
            return groups
        # A control: rewards say nothing of any candidate, not even on average.
        draw = random.Random(derive_seed(self.seed, scope, "shuffle"))

        def drawn(trajectory: Trajectory) -> Trajectory:
            return trajectory.model_copy(update={"reward": trajectory.reward and draw.choice(pool)})

        return [replace(group, trajectories=tuple(map(drawn, group.trajectories))) for group in groups]

    async def best(self, candidates: Sequence[Sequence[Operation]]) -> Sequence[Operation]:
        """The candidate with the highest mean reward on the batch's tasks; none if the texts as they are earn more.

        These, and every candidate with a sound operation, get an equal number of rollouts on the same tasks: all that
        are left. Of equal ones the shortest is chosen, which the gate may accept at equal worth.
        """
        sides = [(operations, changed) for operations in candidates if (changed := self.changed(operations))]
        each = self.rollouts // (len(sides) + 1)
        if not sides or not each:
            return sides[0][0] if sides else ()
        tasks, found = self.tasks[:each], list[tuple[float, int, int]]()
        for place, (_, lesson_set) in enumerate((((), self.lesson_set), *sides)):
            groups = await self.play(lesson_set, tasks, each // len(tasks))
            rewards = [each.reward.value for group in groups for each in group.trajectories if each.reward]
            length = sum(tokens(lesson.text) for lesson in lesson_set.lessons)
            # Without a result of the texts as they are, nothing is known to be better; no candidate without one is.
            if not (rewards or place):
                return ()
            found.append((fmean(rewards) if rewards else -1.0, -length, -place))
        chosen = -max(found)[2]
        return sides[chosen - 1][0] if chosen else ()


class Proposer(Protocol):
    """Suggests changes of an agent's texts. It keeps nothing from one update to the next: a resumed run repeats it."""

    async def propose(self, work: Work) -> Proposal | Sequence[Operation]:
        """Suggest changes. Raises `EngineError` or `BudgetError`, which stop the run; it can be resumed."""
        ...


def ended(trajectory: Trajectory) -> bool:
    """Whether a rollout has a reward to learn from."""
    return trajectory.status == "ok" and trajectory.reward is not None


def error_of(trajectory: Trajectory) -> str:
    """Return why a rollout failed, on one line."""
    return trajectory.error.line if trajectory.error else "no reward"


def own_proposer(kind: Kind, reference: str, value: object) -> type[ComponentConfig]:
    """The settings of a proposer of your own (`lessons.proposers = ["mine.py:shorter"]`)."""
    if made := class_or_object(kind, ProposerConfig, reference, value, Proposer, "propose"):
        return made
    function = OwnFunction(kind, reference, value, ("work",), "a function of `work` that returns operations")

    def build(settings: ComponentConfig, context: Context) -> Any:
        return SimpleNamespace(propose=lambda work: function.called(settings, {"work": work}))

    return function.settings(ProposerConfig, build=build)
