"""Lessons that a very small planner can be taught to follow in either world: a closed set of sentences.

A planner of half a million parameters reads no English. It can learn that a sentence stands for a way to decide, if its
warm start shows it transcripts of a planner that follows the lessons in its prompt, drawn again for each transcript.
Then its weights can be frozen and its prompt improved, as a large model's can. Each decision of a plan has a sound
sentence and a bad one, which makes it worse; two more change nothing and only take up room.

This is a test of mechanics, with a model that samples every token, but with sentences that mean something to it alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from midstream.core.seeds import derive_seed
from midstream.core.texts import Lessons

Decision = Literal["form", "guess", "tool", "attribute", "place", "operator", "operands"]


def lines(texts: Iterable[str]) -> str:
    """Render lessons for a prompt: one line each, with line breaks inside a lesson replaced by spaces."""
    return "\n".join(f"- {' '.join(text.split())}" for text in texts)


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownLesson:
    """A sentence, the decision it is `about` (None: no decision), and whether following it is `sound`."""

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
BY_TEXT = {lesson.text: lesson for lesson in KNOWN}


def decisions(lessons: str) -> dict[Decision, bool]:
    """Map each decision that rendered lessons speak of to sound (True) or bad; the later of two lessons counts.

    A sentence that differs from a known one by a single letter is ignored.
    """
    known = (BY_TEXT.get(line.removeprefix("- ")) for line in lessons.splitlines())
    return {lesson.about: lesson.sound for lesson in known if lesson is not None and lesson.about is not None}


def lesson_words() -> set[str]:
    """Every word of the known sentences."""
    return {word for lesson in KNOWN for word in lesson.text.split()}


def draw_lessons(task_ids: Sequence[str], share: float, seed: int) -> dict[str, Lessons]:
    """Lessons for the prompts of a `share` of some tasks, from one sentence to nearly all, most of them sound."""
    found: dict[str, Lessons] = {}
    for task_id in task_ids:
        rng = random.Random(derive_seed(seed, "lessons", task_id))
        found[task_id] = {}
        if rng.random() >= share:
            continue
        chance = {True: rng.random(), False: rng.random() / 4}
        texts = [lesson.text for lesson in KNOWN if rng.random() < chance[lesson.sound]]
        rng.shuffle(texts)
        if texts:
            found[task_id] = {"planner": lines(texts)}
    return found
