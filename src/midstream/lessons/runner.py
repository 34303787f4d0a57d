"""Rollouts to learn from: each is counted, kept when it ends, and taken from what was kept when a run resumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from midstream.core.agent import lessons_digest
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.texts import Lessons
from midstream.core.trajectory import Trajectory
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import LessonSet, render_modules
from midstream.rollout import Environment, Group, rollout, shuffle_rewards
from midstream.runs.budget import require_within_budget
from midstream.runs.journal import Report


def counter(report: Report, what: str, done: int, total: int) -> Callable[[Sequence[Trajectory]], None]:
    """Report how many of `total` rollouts are done; returns a function that counts more, and reports again."""
    report(f"{what} {done}/{total}")

    def count(ended: Sequence[Trajectory]) -> None:
        nonlocal done
        done += len(ended)
        report(f"{what} {done}/{total}")

    return count


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """One task to be run with two lesson sets. Its id belongs to the pair, so that a task may be drawn twice."""

    task: Task
    first: LessonSet
    other: LessonSet


@dataclass
class Runner:
    """Runs tasks with a lesson set in the prompts. `scope` names a job within the run, for seeds and ledger.

    `shuffle` permutes the rewards of each job at random, a control; the ledger keeps the true ones. `report` receives
    the progress of a job, `on_done` its scope and each trajectory that ends.
    """

    environment: Environment
    ledger: Ledger
    seed: int
    shuffle: bool = False
    report: Report = lambda text: None
    on_done: Callable[[str, Sequence[Trajectory]], None] = lambda scope, ended: None

    async def groups(self, scope: str, tasks: Sequence[Task], lesson_set: LessonSet, group_size: int) -> list[Group]:
        """Run every task `group_size` times with `lessons`; raises `BudgetError` if a limit prevented a rollout."""
        lessons = dict.fromkeys((task.id for task in tasks), render_modules(lesson_set))
        return await self._run("learning", scope, tasks, lessons, group_size)

    async def pairs(self, scope: str, matches: Sequence[Match]) -> list[tuple[float, float] | None]:
        """The rewards of each match, with `first` and with `other`; None where a side has no reward (an error).

        Raises `BudgetError` if a limit prevented a rollout.
        """
        tasks, lessons = [], {}
        for match in matches:
            for side, lesson_set in (("first", match.first), ("other", match.other)):
                # Each side needs its own id: lessons and seeds go by task.
                task = match.task.model_copy(update={"id": f"{match.task.id}~{side}"})
                tasks.append(task)
                lessons[task.id] = render_modules(lesson_set)
        rewards: list[float | None] = []
        for group in await self._run("gate", scope, tasks, lessons, 1):
            [trajectory] = group.trajectories
            reward = trajectory.reward if trajectory.status == "ok" else None
            rewards.append(reward.value if reward else None)
        sides = zip(rewards[::2], rewards[1::2], strict=True)
        return [None if first is None or other is None else (first, other) for first, other in sides]

    async def _run(
        self, purpose: str, scope: str, tasks: Sequence[Task], lessons: Mapping[str, Lessons], group_size: int
    ) -> list[Group]:
        seed = derive_seed(self.seed, scope)
        # A trajectory with other lessons in its prompts is from an attempt that took another path.
        shown = {task_id: lessons_digest(of_task) for task_id, of_task in lessons.items()}
        kept = {
            place: trajectory
            for place, trajectory in self.ledger.kept(scope).items()
            if shown.get(place[0]) == trajectory.lessons
        }
        what = f"{purpose}, {scope.split('-', 2)[-1]}: rollouts" if purpose == "gate" else "rollouts"
        count = counter(self.report, what, len(kept), len(tasks) * group_size)

        def on_done(ended: Sequence[Trajectory]) -> None:
            # On disk before it is reported.
            self.ledger.keep(scope, ended)
            count(ended)
            self.on_done(scope, ended)

        groups = await rollout(
            self.environment, tasks, group_size=group_size, seed=seed, lessons=lessons, kept=kept, on_done=on_done
        )
        require_within_budget([trajectory for group in groups for trajectory in group.trajectories])
        if self.shuffle:
            shuffled = shuffle_rewards([group.trajectories for group in groups], derive_seed(seed, "shuffle"))
            groups = [replace(group, trajectories=found) for group, found in zip(groups, shuffled, strict=True)]
        return groups
