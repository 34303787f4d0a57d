"""The wordings of the atlas: enough of them, held-out ones apart, and none that two attributes share."""

from __future__ import annotations

import re
from itertools import combinations
from random import Random

import pytest

from midstream_worlds.atlas.questions import ATTRIBUTES, Asked, documents, wording, wordings

SLOTS = {f"{kind}.{name}": slot for kind, slots in wordings().items() for name, slot in slots.items()}
LEAST = {"seen": 12, "held_out": 3}


def words(part):
    return set(re.findall(r"[a-z]+", part.lower()))


@pytest.mark.parametrize("slot", SLOTS)
def test_a_slot_has_enough_parts_and_no_part_twice(slot):
    parts = SLOTS[slot]
    assert {which: len(parts[which]) >= least for which, least in LEAST.items()} == dict.fromkeys(LEAST, True)
    together = [*parts["seen"], *parts["held_out"]]
    assert len({part.lower() for part in together}) == len(together)


def test_held_out_parts_have_no_word_that_training_does_not_meet():
    met = {word for slot in SLOTS.values() for part in slot["seen"] for word in words(part)}
    new = {part: words(part) - met for slot in SLOTS.values() for part in slot["held_out"]}
    assert {part: unmet for part, unmet in new.items() if unmet} == {}


def test_a_wording_means_one_attribute_and_one_operator():
    for kind, slots in wordings().items():
        for first, second in combinations(slots.values(), 2):
            if kind != "frames":
                assert not {*first["seen"], *first["held_out"]} & {*second["seen"], *second["held_out"]}


@pytest.mark.parametrize(
    ("kind", "places"), [("sums", 2), ("diffs", 2), ("compares", 2), ("operators", 2), ("nouns", 1)]
)
def test_every_part_has_its_places(kind, places):
    expected = ["{0}", "{1}"] if places == 2 else ["{}"]
    for slot in wordings()[kind].values():
        for part in (*slot["seen"], *slot["held_out"]):
            assert sorted(re.findall(r"\{\d?\}", part)) == expected, part


def test_documents_state_one_attribute():
    for attribute, phrases in documents().items():
        for phrase in phrases:
            assert words(phrase) & {*ATTRIBUTES} == {attribute}, phrase


def test_an_unseen_question_consists_of_held_out_parts():
    asked = Asked(family="hop", places=("Brest",), attribute="length", relation="river")
    questions = {wording(asked, Random(seed), held_out=True) for seed in range(300)}
    assert len(questions) > 30
    held_out = [part.format("Brest") for part in wordings()["relations"]["river"]["held_out"]]
    seen = [part.format("Brest") for part in wordings()["relations"]["river"]["seen"]]
    for question in questions:
        river = max((part for part in (*held_out, *seen) if part.lower() in question.lower()), key=len)
        assert river in held_out, question
    assert {question[0] for question in questions} <= {*"ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
