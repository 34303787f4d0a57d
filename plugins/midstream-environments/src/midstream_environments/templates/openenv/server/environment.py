"""The environment: a question, calls of midstream's tools, and an answer that midstream's reward scores."""

import asyncio
import random
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from midstream_environments.exported import World, WorldRun
from openenv.core.env_server.interfaces import Environment

from ..models import WorldAction, WorldObservation, WorldState


@cache
def world() -> World:
    """The tasks, tools and reward, which all sessions share."""
    return World(Path(__file__).parents[1] / "world")


class WorldEnvironment(Environment[WorldAction, WorldObservation, WorldState]):
    """One session: an episode is one attempt at a task."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._run: WorldRun | None = None
        self._state = WorldState()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, task: str = "", split: str = "", **_: Any
    ) -> WorldObservation:
        """Begin an episode: of the task, or of one of the split that the seed draws; without a split, of the first."""
        self._run, found = None, world()
        draws = random.Random(seed)
        case = task or draws.choice(found.cases(split or found.splits[0]))
        self._run = found.open(case, seed=draws.randrange(2**31) if seed is None else seed)
        self._state = WorldState(episode_id=episode_id or uuid4().hex, task=case)
        question = found.tasks[case].question
        return WorldObservation(text=question, task=case, system=found.system, tools=found.schemas)

    def step(self, action: WorldAction, timeout_s: float | None = None, **_: Any) -> WorldObservation:
        """As `step_async`, where no event loop runs."""
        return asyncio.run(self.step_async(action, timeout_s))

    async def step_async(self, action: WorldAction, timeout_s: float | None = None, **_: Any) -> WorldObservation:
        """Call a tool, or score the answer. What fails raises, and is no reward."""
        if self._run is None:
            raise RuntimeError("no episode is under way: call reset")
        self._state.step_count += 1
        async with asyncio.timeout(timeout_s):
            if action.answer is None:
                result = await self._run.call(action.tool, action.arguments)
                return WorldObservation(text=result.text, ok=result.ok, task=self._state.task)
            score = await self._run.score(action.answer)
        self._run = None
        return WorldObservation(
            text=score.feedback, task=self._state.task, reward=score.value, parts=dict(score.parts), done=True
        )

    @property
    def state(self) -> WorldState:
        """The episode, and its task."""
        return self._state
