"""An agent whose sessions are ragged and fail: one to three conversations of its policy, decided by the run's seed."""

from __future__ import annotations

import midstream as ms
from midstream.core.agent import RunContext
from midstream.core.errors import ToolServerError
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory

FAILS = 5  # of so many sessions one fails


class Ragged:
    """Searches once in each turn, and asks its policy in a conversation of its own."""

    name = "ragged"

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        """One session. Raises `ToolServerError` in one of `FAILS`, after its first turn."""
        turns, tools = [], {tool.name: tool for tool in context.tools}
        for index in range(1, 2 + context.seed % 3):
            module = context.begin("policy", turn=index)
            message = ms.Message(role="user", content=f"{task.question} Turn {index}.")
            call = await module.sample(
                ms.Request(role="policy", messages=(message,), seed=module.seed, sampling=ms.Sampling(max_tokens=30))
            )
            if context.seed % FAILS == 0:
                raise ToolServerError("the search server is down", code="tool-server", fix="start it")
            found = await tools["local_search"].call({"query": call.completion or "a place"})
            turns.append(
                ms.Turn(
                    index=index,
                    calls=(call,),
                    action=ms.Action(tool="local_search"),
                    observation=ms.Observation(status="ok" if found.ok else "error", text=found.text),
                )
            )
        return ms.Trajectory(
            id=task.id,
            task_id=task.id,
            question=task.question,
            agent=self.name,
            seed=context.seed,
            turns=tuple(turns),
            answer=" ".join(turn.calls[0].completion for turn in turns),
            stop_reason="answered",
        )

    async def close(self) -> None:
        """Nothing to close."""


def letters(answer: str) -> float:
    """A reward without ties: which part of the letters are e and a."""
    return sum(letter in "ea" for letter in answer) / (1 + len(answer))
