"""How models write answers, right and wrong as a careful person would call them: a table for each reward.

Math's is held in test_math.py, by the workers of its other tests.
"""

from __future__ import annotations

import asyncio

import pytest

from midstream.core.answers import extract
from midstream.rewards.exact_match import ExactMatch
from midstream.rewards.multiple_choice import MultipleChoice, find_choice
from midstream.rewards.numeric import Numeric
from midstream.rewards.statement import unbox
from midstream_benchmarks.game24_reward import Game24
from support.forms import forms, misjudged

RULES = {
    "exact_match": ExactMatch(),
    "game24": Game24(),
    "multiple_choice": MultipleChoice(),
    "numeric": Numeric(),
}


@pytest.mark.parametrize("name", RULES)
def test_every_form_is_read_as_a_careful_person_would(name):
    assert asyncio.run(misjudged(RULES[name], name)) == []


def test_a_form_that_is_right_chooses_no_other_option():
    failed = [
        f"{gold} | {form}"
        for gold, form, metadata, right in forms("multiple_choice")
        if right and find_choice(unbox(extract(form)), metadata["options"]) != {gold}
    ]
    assert failed == []


@pytest.mark.parametrize("name", [*RULES, "math"])
def test_the_tables_are_large_enough(name):
    verdicts = [right for _, _, _, right in forms(name)]
    assert verdicts.count(True) >= 300
    assert verdicts.count(False) >= 200
