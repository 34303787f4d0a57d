"""Rollouts of practice: every one is counted, kept as it ends, and taken from what was kept where a run goes on."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from midstream.core.errors import BudgetError
from midstream.core.lessons import NO_LESSONS, Lessons, digest
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.practice.ledger import Cache, Ledger
from midstream.practice.library import Library, render_modules
from midstream.rollout import Environment, Group, Place, rollout

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """One task to be run with two libraries. Its id is the pair's own, so that a task may be drawn twice."""

    task: Task
    first: Library
    other: Library


@dataclass(frozen=True, kw_only=True)
class Work:
    """One piece of work of a run: tasks that are run so many times each, with these lessons in the prompts.

    `scope` names it within the run, `purpose` among runs. `seed` is the one that `rollout` gets.
    """

    scope: str
    purpose: str
    tasks: Sequence[Task]
    group_size: int
    seed: int
    lessons: Mapping[str, Lessons]

    def kept(self, ledger: Ledger, cache: Cache | None) -> dict[Place, Trajectory]:
        """What there is already, in the ledger or in the cache; what the cache has, the ledger has then, too.

        A trajectory with other lessons in its prompts is of an attempt that took another way.
        """
        told = {task.id: digest(self._lessons(task)) for task in self.tasks}
        mine = {place: one for place, one in ledger.kept(self.scope).items() if told.get(place[0]) == one.lessons}
        if cache is None:
            return mine
        found = {}
        for task in self.tasks:
            for index in range(self.group_size):
                if (task.id, index) not in mine:
                    found[task.id, index] = cache.trajectory(self.purpose, task, self._lessons(task), self.seed, index)
        new = {place: one for place, one in found.items() if one is not None}
        ledger.keep(self.scope, list(new.values()))
        return mine | new

    def keep(self, ended: Sequence[Trajectory], ledger: Ledger, cache: Cache | None) -> None:
        """Keep what has ended."""
        ledger.keep(self.scope, ended)
        if cache is not None:
            tasks = {task.id: task for task in self.tasks}
            for one in ended:
                task = tasks[one.task_id]
                cache.keep(self.purpose, task, self._lessons(task), self.seed, one)

    def _lessons(self, task: Task) -> Lessons:
        return self.lessons.get(task.id, NO_LESSONS)


class Runner:
    """Runs tasks with a library in the prompts. `scope` names a piece of work within the run, for seeds and ledger.

    `shuffle` deals the rewards of each piece of work out at random, a control; what is kept has its own. `report` is
    told how far a piece of work is.
    """

    def __init__(
        self,
        environment: Environment,
        ledger: Ledger,
        seed: int,
        *,
        shuffle: bool = False,
        cache: Cache | None = None,
        report: Report = lambda text: None,
    ) -> None:
        self.environment, self.ledger, self.seed = environment, ledger, seed
        self.shuffle, self.cache, self.report = shuffle, cache, report

    async def groups(self, scope: str, tasks: Sequence[Task], library: Library, group_size: int) -> list[Group]:
        """Every task `group_size` times with `library`."""
        lessons = render_modules(library)
        told = dict.fromkeys((task.id for task in tasks), lessons)
        return await self._roll("learning", scope, tasks, told, group_size)

    async def pairs(self, scope: str, matches: Sequence[Match]) -> list[tuple[float, float] | None]:
        """The rewards of each match, with `first` and with `other`; None where a side has none (an error)."""
        tasks, lessons = [], {}
        for match in matches:
            for side, library in (("first", match.first), ("other", match.other)):
                task = match.task.model_copy(update={"id": f"{match.task.id}~{side}"})
                tasks.append(task)
                lessons[task.id] = render_modules(library)
        played = [group.trajectories[0] for group in await self._roll("gate", scope, tasks, lessons, 1)]
        values = [one.reward.value if one.reward and one.status == "ok" else None for one in played]
        sides = zip(values[::2], values[1::2], strict=True)
        return [None if one is None or two is None else (one, two) for one, two in sides]

    async def _roll(
        self, purpose: str, scope: str, tasks: Sequence[Task], lessons: Mapping[str, Lessons], group_size: int
    ) -> list[Group]:
        """Raises `BudgetError` where a limit kept one from being run: nothing can be said of the others alone."""
        seed = derive_seed(self.seed, scope)
        work = Work(scope=scope, purpose=purpose, tasks=tasks, group_size=group_size, seed=seed, lessons=lessons)
        kept = work.kept(self.ledger, self.cache)
        done, whole = len(kept), len(tasks) * group_size
        said = f"{purpose}, {scope.split('-', 2)[-1]}: rollouts" if purpose == "gate" else "rollouts"

        def on_done(ended: Sequence[Trajectory]) -> None:
            nonlocal done
            done += len(ended)
            work.keep(ended, self.ledger, self.cache)
            self.report(f"{said} {done}/{whole}")

        self.report(f"{said} {done}/{whole}")
        groups = await rollout(
            self.environment, tasks, group_size=group_size, seed=seed, lessons=lessons, kept=kept, on_done=on_done
        )
        require_within_budget([one for group in groups for one in group.trajectories])
        return _shuffled(groups, derive_seed(seed, "shuffle")) if self.shuffle else groups


def require_within_budget(trajectories: Sequence[Trajectory]) -> None:
    """Raise the `BudgetError` that ended one of them."""
    for one in trajectories:
        if one.error is not None and one.error.type == BudgetError.__name__:
            what, *more = one.error.message.splitlines()
            said = {label.strip(): text for label, _, text in (line.partition(": ") for line in more)}
            raise BudgetError(what, cause=said.get("cause", ""), fix=said.get("fix", ""))


def _shuffled(groups: Sequence[Group], seed: int) -> list[Group]:
    """The same trajectories, their rewards dealt out anew among all of them."""
    rewards = [one.reward for group in groups for one in group.trajectories if one.reward is not None]
    random.Random(seed).shuffle(rewards)
    dealt = iter(rewards)

    def redealt(one: Trajectory) -> Trajectory:
        if one.reward is None:
            return one
        other = next(dealt)
        changes = {"value": other.value, "parts": other.parts}
        return one.model_copy(update={"reward": one.reward.model_copy(update=changes)})

    return [Group(task=group.task, trajectories=tuple(map(redealt, group.trajectories))) for group in groups]
