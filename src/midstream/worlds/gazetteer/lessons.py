"""Lessons about the gazetteer that a very small planner can be taught to heed: a closed set of sentences.

A planner of half a million parameters reads no English. It can learn that a sentence stands for a way to decide, if its
warm start shows it transcripts of a planner that heeds the lessons in its prompt, drawn afresh for each transcript.
Then its weights can be frozen and its prompt improved, as a large model's can. Each decision of a plan has a sound
sentence and a bad one, which makes it worse; two more change nothing and only take up room.

This is a test of mechanics, with a model that samples every token, but with sentences that mean something to it alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from midstream.core.lessons import Lessons, lines
from midstream.core.seeds import derive_seed

Decision = Literal["form", "guess", "tool", "attribute", "place", "operator", "operands"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownLesson:
    """A sentence, the decision that it is `about` (None: none), and whether who heeds it decides soundly or badly."""

    text: str
    about: Decision | None
    sound: bool = True


SOUND: dict[Decision, str] = {
    "form": "Write goal tool and arg",
    "guess": "Never guess",
    "tool": "Look places up before calculating",
    "attribute": "Search for what is asked",
    "place": "Take a new place each time",
    "operator": "Mind which operator is meant",
    "operands": "Calculate with all results",
}
BAD: dict[Decision, str] = {
    "form": "Leave out the tool",
    "guess": "Guess at once",
    "tool": "Calculate first of all",
    "attribute": "Search for the area",
    "place": "Stay with the first place",
    "operator": "Always subtract",
    "operands": "Use the newest result twice",
}
IDLE = ("Read with care", "Stay calm")
KNOWN = (
    *(KnownLesson(text=text, about=about) for about, text in SOUND.items()),
    *(KnownLesson(text=text, about=about, sound=False) for about, text in BAD.items()),
    *(KnownLesson(text=text, about=None) for text in IDLE),
)
_BY_TEXT = {one.text: one for one in KNOWN}


def heard(lessons: str) -> dict[Decision, bool]:
    """What rendered lessons say of each decision: soundly (True) or badly. Of two about the same the later counts.

    Sentences that are not known, by a single letter even, say nothing.
    """
    known = (_BY_TEXT.get(line.removeprefix("- ")) for line in lessons.splitlines())
    return {one.about: one.sound for one in known if one is not None and one.about is not None}


def lesson_words() -> set[str]:
    """Every word of the known sentences."""
    return {word for one in KNOWN for word in one.text.split()}


def drawn(task_ids: Sequence[str], share: float, seed: int) -> dict[str, Lessons]:
    """Lessons for the prompts of `share` of some tasks, from one sentence to nearly all, most of them sound."""
    return {one: _draw(random.Random(derive_seed(seed, "lessons", one)), share) for one in task_ids}


def _draw(rng: random.Random, share: float) -> Lessons:
    if rng.random() >= share:
        return {}
    chance = {True: rng.random(), False: rng.random() / 4}
    texts = [one.text for one in KNOWN if rng.random() < chance[one.sound]]
    rng.shuffle(texts)
    return {"planner": lines(texts)} if texts else {}
