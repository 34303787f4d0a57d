"""Flow-GRPO on a stream of groups: a step takes the oldest groups that have ended, and rollouts never pause.

    groups in flight: tasks_per_step * (S + 1)
    step k: publish version k-1 -> fill up -> take tasks_per_step groups, the oldest that have ended -> update

Where others would become too old, an old group is waited for: no trajectory is older than S versions. Requests get the
newest weights when they are made: a trajectory may have calls of several versions, each with its own log-probabilities.
Which groups a step takes depends on timing, so a run does not repeat.
"""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass, field

from midstream.rollout import Group
from midstream.training.flow_grpo import Sampled
from midstream_async.ahead import RunsAhead


@dataclass(eq=False, kw_only=True, slots=True)
class _Begun:
    """A group that runs, or has ended: the version of the weights when it began."""

    version: int
    task: asyncio.Task[list[Group]]


@dataclass(kw_only=True)
class Stream(RunsAhead):
    """The algorithm."""

    _groups: list[_Begun] = field(default_factory=list, init=False)  # the oldest first
    _began: int = field(default=0, init=False)  # groups, ever

    def __post_init__(self) -> None:
        super().__post_init__()
        self._places = asyncio.Semaphore(max(1, self.environment.config.concurrency // self.config.group_size))

    async def batch(self, step: int) -> tuple[Sampled, int]:
        """The oldest groups that have ended, once there are enough and none is too old to wait longer."""
        config, last = self.config, step - 1
        self.begin(step)
        # None begins that no step would train on.
        wanted = config.tasks_per_step * min(self.ahead.staleness + 1, config.steps - last)
        while len(self._groups) < wanted:
            self._begin(last)
        while True:
            chosen = [one for one in self._groups if one.task.done()][: config.tasks_per_step]
            if len(chosen) == config.tasks_per_step and self._in_time(chosen, step):
                break
            running = [one.task for one in self._groups if not one.task.done()]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        self._groups = [one for one in self._groups if one not in chosen]
        groups = [group for one in chosen for group in one.task.result()]
        sampled = Sampled(groups=groups, kept=groups, batches=self.rows_of(groups, step))
        return sampled, min(one.version for one in chosen)

    def _in_time(self, chosen: list[_Begun], step: int) -> bool:
        """Whether the steps after this one have room for all others before these are too old."""
        left = [one.version for one in self._groups if one not in chosen]
        room = {version: version + 1 + self.ahead.staleness - step for version in left}
        return all(
            sum(other <= version for other in left) <= self.config.tasks_per_step * steps
            for version, steps in room.items()
        )

    async def cancel(self) -> None:
        """End the rollouts under way, which are lost."""
        tasks, self._groups = [one.task for one in self._groups], []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, version: int) -> None:
        self._began += 1
        # What it counts is counted again once a step takes it.
        own = copy.copy(self)
        own.success = dict(self.success)

        async def run(number: int) -> list[Group]:
            async with self._places:
                return await own.roll_out([], 1, version, number)

        self._groups.append(_Begun(version=version, task=asyncio.create_task(run(self._began))))
