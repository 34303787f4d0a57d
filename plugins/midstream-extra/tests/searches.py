"""Runs whose trajectories search, made without an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from midstream.core.trajectory import Command, Observation, Score, Trajectory, Turn
from midstream.runs import RunDirectory
from midstream.runs.info import collect_info


def searched(query: str, text: str, **fields: Any) -> Turn:
    """A turn in which `local_search` returned `text`; `fields` of its observation."""
    return Turn(
        index=1,
        command=Command(tool="local_search", arguments={"query": query}),
        observation=Observation.model_validate({"status": "ok", "text": text} | fields),
    )


def trajectory(name: str, *turns: Turn, gold: str | None = "105", reward: float = 0.0) -> Trajectory:
    """A trajectory of the question how high a place is."""
    question = f"How high is {name} ?"
    score = Score(value=reward)
    return Trajectory(id=f"{name}#0", task_id=name, question=question, turns=turns, gold=gold, reward=score)


def run_of(root: Path, *trajectories: Trajectory, part: int | str = 1) -> RunDirectory:
    """A training run with these trajectories in a part."""
    run = RunDirectory.create(root, collect_info("mine", 3, {"name": "mine"}), "")
    run.trajectories.write(part, list(trajectories))
    return run


def three_searches(root: Path) -> RunDirectory:
    """A useful search by the rule, and two noisy ones."""
    found = ("Amberbank height 105", "Oakfell capital Mistfield", "Mistfield river Oakfell")
    return run_of(root, *(trajectory(text.split()[0], searched("q", text)) for text in found))
