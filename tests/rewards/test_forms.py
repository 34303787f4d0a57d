"""How models write answers, right and wrong as a careful person would call them: a table for each reward.

A line is `gold | form | right` or `wrong`; ⏎ is a line break. A line `options | A. ...; B. ...` holds for the questions
after it, and then a form that is right for its gold is wrong for every other option. Numbers are a Game of 24's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.core.answers import extract
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.rewards.exact_match import ExactMatch
from midstream.rewards.game24 import Game24
from midstream.rewards.math import Math, MathConfig
from midstream.rewards.multiple_choice import MultipleChoice, chosen
from midstream.rewards.numeric import Numeric
from midstream.rewards.rule import BaseReward
from midstream.rewards.statement import unboxed
from support.sandboxes import sandbox

RULES = {
    "exact_match": ExactMatch(),
    "game24": Game24(),
    "multiple_choice": MultipleChoice(),
    "numeric": Numeric(),
}


def forms(name: str) -> Iterator[tuple[str, str, dict, bool]]:
    """(gold, form, metadata, whether it is right) of every line."""
    metadata: dict = {}
    for line in (Path(__file__).parent / "forms" / f"{name}.txt").read_text("utf-8").splitlines():
        gold, _, rest = line.partition(" | ")
        if gold == "options":
            metadata = {
                "options": dict(re.fullmatch(r"([A-Z])\. (.*)", option).groups() for option in rest.split("; "))
            }
            continue
        form, _, verdict = rest.rpartition(" | ")
        assert verdict in ("right", "wrong"), line
        if name == "game24":
            metadata = {"numbers": [int(number) for number in gold.split()]}
        yield gold, form.replace("⏎", "\n"), metadata, verdict == "right"


async def misjudged(reward: BaseReward | Math, name: str, every: int = 1) -> list[str]:
    """The lines whose score is not their verdict; the reward is closed."""
    wrong = []
    try:
        for gold, form, metadata, right in list(forms(name))[::every]:
            task = Task(id="t", question="?", answer=gold, metadata=metadata)
            score = await reward.score(task, Trajectory(id="t#0", task_id="t", answer=form))
            if score.value != right:
                wrong.append(f"{gold} | {form} | {'right' if right else 'wrong'}")
    finally:
        await reward.close()
    return wrong


@pytest.mark.parametrize("name", RULES)
def test_every_form_is_read_as_a_careful_person_would(name):
    assert asyncio.run(misjudged(RULES[name], name)) == []


@pytest.mark.parametrize("every", [25, pytest.param(1, marks=pytest.mark.slow)])
def test_every_mathematical_form(every):
    assert asyncio.run(misjudged(Math(MathConfig(workers=1), sandbox("standard")), "math", every)) == []


def test_a_form_that_is_right_chooses_no_other_option():
    failed = [
        f"{gold} | {form}"
        for gold, form, metadata, right in forms("multiple_choice")
        if right and chosen(unboxed(extract(form)), metadata["options"]) != {gold}
    ]
    assert failed == []


@pytest.mark.parametrize("name", [*RULES, "math"])
def test_the_tables_are_large_enough(name):
    verdicts = [right for _, _, _, right in forms(name)]
    assert verdicts.count(True) >= 300
    assert verdicts.count(False) >= 200
