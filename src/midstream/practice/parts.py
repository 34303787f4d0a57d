"""What is wired for a practice run: the objects that its session needs, made by whoever reads the recipe."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from midstream import evaluation
from midstream.core.protocols import Engine
from midstream.core.task import Task
from midstream.practice.budget import Meter
from midstream.practice.cache import Cache
from midstream.practice.library import Library
from midstream.practice.settings import PracticeConfig
from midstream.rollout import Environment
from midstream.runs import RunDirectory

Prepare = Callable[[RunDirectory, Callable[[str], None]], Awaitable[None]]


class MakeEnvironment(Protocol):
    """Builds an environment with some settings changed; its engines and its agent go through the meter."""

    def __call__(self, *, temperature: float | None = None, chosen: evaluation.SetConfig | None = None) -> Environment:
        """None leaves the recipe's own; `chosen` is the set that is evaluated."""
        ...


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What is wired for a run.

    `validation` are the tasks of `validation_set`, which the gate tests on. `engines` go by the reflector's roles.
    `start` is the library to begin with, `identity` names the agent. `prepare` makes the planner's weights what they
    were at the run's start, where they are made in process.
    """

    seed: int
    tasks: Sequence[Task]
    validation: Sequence[Task]
    validation_set: evaluation.SetConfig
    set_tasks: Callable[[evaluation.SetConfig], list[Task]]
    make_environment: MakeEnvironment
    engines: Mapping[str, Engine]
    start: Library
    identity: str
    meter: Meter
    cache: Cache | None
    prepare: Prepare | None
    practice: PracticeConfig
    evaluation: evaluation.Config
