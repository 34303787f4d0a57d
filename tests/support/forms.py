"""The tables of `tests/rewards/forms`: how models write answers, and whether each is right.

A line is `gold | form | right`, `wrong`, or `unread`: right, and scored 0 because its words are not all known (a judge
may read it). ⏎ is a line break. Lines `question | ...` and `options | A. ...; B. ...`
hold for the lines after them, and a form that is right for its gold is wrong for every other option. Numbers are those
of a Game of 24.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

from midstream.core.source import Reward
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory


def forms(name: str) -> Iterator[tuple[str, str, dict, bool]]:
    """(gold, form, metadata with the question, whether it scores 1) of every line."""
    metadata: dict = {"question": "?"}
    for line in (Path(__file__).parent.parent / "rewards" / "forms" / f"{name}.txt").read_text("utf-8").splitlines():
        gold, _, rest = line.partition(" | ")
        if gold == "question":
            metadata = {"question": rest}
            continue
        if gold == "options":
            options = dict(re.fullmatch(r"([A-Z])\. (.*)", option).groups() for option in rest.split("; "))
            metadata = {"question": metadata["question"], "options": options}
            continue
        form, _, verdict = rest.rpartition(" | ")
        assert verdict in ("right", "wrong", "unread"), line
        if name == "game24":
            metadata = {"numbers": [int(number) for number in gold.split()]}
        yield gold, form.replace("⏎", "\n"), metadata, verdict == "right"


async def misjudged(reward: Reward, name: str, every: int = 1) -> list[str]:
    """The lines whose score is not their verdict."""
    cases = list(forms(name))[::every]

    async def score(gold: str, form: str, metadata: dict) -> float:
        task = Task(id="t", question=metadata.get("question", "?"), answer=gold, metadata=metadata)
        return (await reward.score(task, Trajectory(id="t#0", task_id="t", answer=form))).value

    values = await asyncio.gather(*(score(*case) for *case, _ in cases))
    return [
        f"{gold} | {form} | {'right' if right else 'wrong'}"
        for (gold, form, _, right), value in zip(cases, values, strict=True)
        if value != right
    ]
