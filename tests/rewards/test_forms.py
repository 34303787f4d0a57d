"""How models write answers, right and wrong as a careful person would call them: a table for each reward.

A line is `gold | form | right` or `wrong`; ⏎ is a line break. A line `options | A. ...; B. ...` holds for the questions
after it, and then a form that is right for its gold is wrong for every other option. Numbers are a Game of 24's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.rewards.exact_match import ExactMatch
from midstream.rewards.game24 import Game24
from midstream.rewards.multiple_choice import MultipleChoice
from support.rules import value

RULES = {"exact_match": ExactMatch(), "game24": Game24(), "multiple_choice": MultipleChoice()}


def forms(name: str) -> Iterator[tuple[str, str, dict, bool]]:
    """(gold, form, metadata, whether it is right) of every line."""
    metadata: dict = {}
    for line in (Path(__file__).parent / "forms" / f"{name}.txt").read_text("utf-8").splitlines():
        gold, _, rest = line.partition(" | ")
        if gold == "options":
            metadata = {"options": dict(re.fullmatch(r"([A-Z])\. (.*)", option).groups() for option in rest.split("; "))}
            continue
        form, _, verdict = rest.rpartition(" | ")
        assert verdict in ("right", "wrong"), line
        if name == "game24":
            metadata = {"numbers": [int(number) for number in gold.split()]}
        yield gold, form.replace("⏎", "\n"), metadata, verdict == "right"


@pytest.mark.parametrize("name", RULES)
def test_every_form_is_read_as_a_careful_person_would(name):
    failed = [
        f"{gold} | {form} | {'right' if right else 'wrong'}"
        for gold, form, metadata, right in forms(name)
        if value(RULES[name], form, gold, **metadata) != right
    ]
    assert failed == []


def test_a_form_that_is_right_is_wrong_for_every_other_option():
    failed = [
        f"{other} | {form}"
        for gold, form, metadata, right in forms("multiple_choice")
        for other in metadata["options"]
        if right and other != gold and value(RULES["multiple_choice"], form, other, **metadata)
    ]
    assert failed == []


@pytest.mark.parametrize("name", RULES)
def test_the_tables_are_large_enough(name):
    verdicts = [right for _, _, _, right in forms(name)]
    assert verdicts.count(True) >= 300
    assert verdicts.count(False) >= 200
