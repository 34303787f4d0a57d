"""An agent whose rounds of verification and refinement succeed with known probabilities, in any order of completion."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

from midstream.core.agent import RunContext
from midstream.core.task import Task
from midstream.core.trajectory import Call, ErrorInfo, Trajectory, Turn

Fault = Callable[[str, int], ErrorInfo | Exception | None]  # (part, its number among the runs of this part)


def part_of(task: Task) -> str:
    """What a prompt asks for."""
    if "# Verification" in task.question:
        return "refine"
    return "verify" if "# Candidate solution" in task.question else "solve"


class Simulated:
    """Answers "right" or "wrong N", of which N is one of `wrongs`; every part makes one request.

    `order` seeds how long each run waits. `fault` says which runs fail and how. `runs` counts those that began.
    """

    name = "simulated"

    def __init__(
        self,
        start: float = 0.4,
        improve: float = 0.35,
        degrade: float = 0.1,
        *,
        wrongs: int = 1,
        order: int | None = None,
        fault: Fault = lambda part, number: None,
        takes_s: float = 0.0,
    ) -> None:
        self.start, self.improve, self.degrade, self.wrongs = start, improve, degrade, wrongs
        self.order = None if order is None else random.Random(order)
        self.fault, self.takes_s = fault, takes_s
        self.runs: Counter[str] = Counter()
        self.tasks: list[Task] = []
        self.closed = False

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        part, draw = part_of(task), random.Random(context.seed)
        self.runs[part] += 1
        self.tasks.append(task)
        failure = self.fault(part, self.runs[part])
        for _ in range(self.order.randrange(20) if self.order else 0):
            await asyncio.sleep(0)
        await asyncio.sleep(self.takes_s)
        if isinstance(failure, Exception):
            raise failure
        if part == "verify":
            answer = None
        else:
            was_right = "# Candidate solution\n\nright" in task.question
            chance = self.start if part == "solve" else 1 - self.degrade if was_right else self.improve
            answer = "right" if draw.random() < chance else f"wrong {draw.randrange(self.wrongs)}"
        calls = (Call(role="policy", completion=answer or "I have checked it."),)
        return Trajectory(
            id=task.id,
            task_id=task.id,
            question=task.question,
            agent=self.name,
            seed=context.seed,
            turns=(Turn(index=1),),
            closing_calls=calls,
            answer=answer,
            final=answer or "I have checked it.",
            stop_reason="answered" if answer else "ended",
            status="error" if failure else "ok",
            error=failure,
            cost_usd=0.5,
        )

    async def close(self) -> None:
        self.closed = True
