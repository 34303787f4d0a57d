"""Recipes whose model is a function of the conversation, and what they gave."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import midstream as ms
from midstream.core.trajectory import Trajectory
from midstream_environments.episodes import Episode, EpisodeCases

# A model for any game: what it says is drawn, but the same for the same conversation and seed.
PLAYER = """
import json
import random

def play(messages, seed):
    draw = random.Random(f"{seed} {len(messages)} {messages[-1]['content']}")
    rules = " ".join(message["content"] for message in messages[:2])
    if draw.random() < 0.05:
        return "I pass."
    if "Guess The Number" in rules:
        return f"Maybe [{draw.randint(1, 21)}]."
    if "Mastermind" in rules:
        return "[" + " ".join(map(str, draw.sample(range(1, 7), 4))) + "]"
    if "Hanoi" in rules:
        return f"[{draw.choice('ABC')} {draw.choice('ABC')}]"
    if "[up]" in rules:
        return f"[{draw.choice(['up', 'down', 'left', 'right'])}]"
    if "minesweeper" in rules.lower() or "Lights Out" in rules:
        return f"[{draw.randrange(5)} {draw.randrange(5)}]"
    return f"Let me see: not 3 but {draw.randrange(4)}"

def echo(messages, seed):
    return "word " * random.Random(f"{seed} {len(messages)}").randint(1, 6)

def medic(messages, seed):
    draw = random.Random(seed)
    proof = draw.choice(["It was safe in 3 of 4 trials.", "It never was", ""])
    final = draw.choice(["Mostly.", "The documents do not say.", "No."])
    return draw.choice([json.dumps({"analysis": "3 of 4", "proof": proof, "final": final}), final])
"""


def evaluated(
    directory: Path, base: str, tasks: Mapping[str, Any], *, player: str = "play", **settings: Any
) -> list[Trajectory]:
    """The trajectories of a recipe's training split, played by a function."""
    (directory / "player.py").write_text(PLAYER)
    lines = [
        f'extends = "{base}"',
        'name = "played"',
        f"tasks = {toml(tasks)}",
        f'engines.model = {{ type = "player.py:{player}" }}',
        *(f"{name} = {toml(value)}" for name, value in settings.items()),
    ]
    (directory / "played.toml").write_text("\n".join(lines))
    return [*ms.evaluate(str(directory / "played.toml"), out=directory / "run", quiet=True).trajectories()]


def toml(value: Any) -> str:
    """A value as TOML, on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value) if isinstance(value, bool | int | float | str) else json.dumps(str(value))


def replies(trajectory: Trajectory) -> list[str]:
    """What the model said, reply by reply."""
    return ["".join(call.completion for call in turn.calls) for turn in trajectory.turns]


def heard(trajectory: Trajectory) -> list[str]:
    """What the environment said, message by message."""
    return [turn.user for turn in trajectory.turns if turn.user]


def run_script(python: Path, script: str, given: Any, *words: str) -> Any:
    """What a script prints as JSON, in the interpreter that has the library; it reads `given` as JSON."""
    found = subprocess.run(
        [str(python), "-c", script, *words], input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return json.loads(found.stdout.splitlines()[-1])


def opened(source: Any, *tasks: Any) -> Any:
    """What episodes of tasks say at their begin, next to each other."""

    async def begin() -> list[str]:
        episodes = [source.open(task, seed=1) for task in tasks]
        turns = [await episode.begin() for episode in episodes]
        for episode in episodes:
            await episode.close()
        return [turn.text for turn in turns]

    return asyncio.run(begin())


def played(source: EpisodeCases, *replies: str) -> tuple[list[str], Episode]:
    """What one episode says, and the episode."""
    episode = source.open(source.tasks("train")[0], seed=0)

    async def play() -> list[str]:
        said = [(await episode.begin()).text]
        for text in replies:
            turn = await episode.reply(text)
            said.append(f"{turn.text} (over)" if turn.over else turn.text)
        await episode.close()
        return said

    return asyncio.run(play()), episode
