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

from midstream.core.answers import extract, unboxed
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.rewards.exact_match import ExactMatch
from midstream.rewards.game24 import Game24
from midstream.rewards.multiple_choice import MultipleChoice, chosen

RULES = {"exact_match": ExactMatch(), "game24": Game24(), "multiple_choice": MultipleChoice()}


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


@pytest.mark.parametrize("name", RULES)
def test_every_form_is_read_as_a_careful_person_would(name):
    async def score(gold: str, form: str, metadata: dict) -> float:
        task = Task(id="t", question="?", answer=gold, metadata=metadata)
        return (await RULES[name].score(task, Trajectory(id="t#0", task_id="t", answer=form))).value

    async def failed() -> list[str]:
        return [
            f"{gold} | {form} | {'right' if right else 'wrong'}"
            for gold, form, metadata, right in forms(name)
            if await score(gold, form, metadata) != right
        ]

    assert asyncio.run(failed()) == []


def test_a_form_that_is_right_chooses_no_other_option():
    failed = [
        f"{gold} | {form}"
        for gold, form, metadata, right in forms("multiple_choice")
        if right and chosen(unboxed(extract(form)), metadata["options"]) != {gold}
    ]
    assert failed == []


@pytest.mark.parametrize("name", RULES)
def test_the_tables_are_large_enough(name):
    verdicts = [right for _, _, _, right in forms(name)]
    assert verdicts.count(True) >= 300
    assert verdicts.count(False) >= 200
