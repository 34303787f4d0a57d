"""Thumbs, notes and choices between answers, kept in the run; a package may count thumbs on lessons."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from midstream.core.errors import UsageError
from midstream.core.seeds import derive_seed
from midstream.report.blocks import Block, safe
from midstream.report.comparison import differing_answers, open_compared
from midstream.runs import RunDirectory
from midstream.runs.feedback import add_feedback, read_choices, read_feedback
from midstream.view.entries import Filter, entries
from midstream.view.parts import Part

LONGEST_NOTE = 10_000  # characters
_THUMBS = ("up", "down", "")
_CHOICES = ("first", "second", "equal")  # of two answers that are shown
Given = dict[str, str]  # {"vote", "note"}


def keep_feedback(run: RunDirectory, body: Any, part: Part | None) -> Block:
    """Keep what a person said: `{"part", "id", "vote", "note"}` of a trajectory, or `{"lesson", "vote", "note"}`.

    Of a change that waits, `{"lesson", "update", "verdict"}`, "yes" or "no"; it then returns whether that is in force.
    A vote or note that is left out stays as it was. `part` is that of the trajectory. Raises `FormError` for a body of
    another form, and `UsageError` without the trajectory, lesson or change.
    """
    from midstream.gateway.forms import FormError
    from midstream.lessons.access import find_lesson
    from midstream.lessons.approval import decide
    from midstream.lessons.feedback import installed

    match body:
        case {"lesson": str(lesson), "update": int(update), "verdict": "yes" | "no" as verdict} if len(body) == 3:
            # Of this update: a page that was not loaded again may show a change of the lesson that is decided.
            return {"applied": decide(run, [lesson], verdict, update=update)[1] is not None}
    known = ("part", "id", "lesson", "vote", "note")
    if (
        not isinstance(body, dict)
        or not all(isinstance(text, str) for text in body.values())
        or {key for key in body if body[key] or key not in known} - {"vote", "note"} not in ({"part", "id"}, {"lesson"})
        or body.get("vote", "") not in _THUMBS
        or len(body.get("note", "")) > LONGEST_NOTE
    ):
        form = f'"part" and "id", or "lesson"; "vote": "up", "down" or ""; "note": at most {LONGEST_NOTE:,} characters'
        raise FormError("body-invalid", f"feedback is an object of texts: {form}", None)
    if part is not None:
        place = next((place for place, entry in enumerate(part.entries) if entry.id == body["id"]), None)
        if place is None:
            what = f"{body['part']} has no trajectory {body['id']!r}"
            raise UsageError(what, code="unknown-name", fix="reload the page: the run may have been rewound")
        # With the texts of the trajectory a vote is of use without its part.
        shown = next(iter(entries(part, Filter(start=place, limit=1))[0]), {})
        texts = {"question": shown.get("question") or "", "answer": shown.get("answer")}
        kept = add_feedback(run.root, {**body, "task": part.entries[place].task_id, **texts})
        return {"vote": kept.vote, "note": kept.note}
    lesson = find_lesson(str(run.root), body["lesson"])
    before = given(run).get(lesson.id, {"vote": ""})
    kept = add_feedback(run.root, body)
    if kept.vote != before["vote"] and (counts := installed()) is not None:
        counts.judged(run, lesson, kept.vote)
    return {"vote": kept.vote, "note": kept.note}


def given(run: RunDirectory, part: str = "") -> dict[str, Given]:
    """What was said of the trajectories of a part, by their ids; without a part, of the run's lessons."""
    said = [entry for entry in read_feedback(run.root).values() if entry.part == part and (entry.vote or entry.note)]
    return {entry.id or entry.lesson: {"vote": entry.vote, "note": entry.note} for entry in said if not entry.against}


def keep_choice(first: RunDirectory, other: RunDirectory, body: Any) -> Block:
    """Keep, in `other`, which of two answers is better, `{"id", "choice"}`; returns the next question.

    `choice` is "first", "second", "equal", or "" to take it back. Raises `UsageError` for another body or question.
    """
    number, choice = (str(body.get(name)) for name in ("id", "choice")) if isinstance(body, dict) else ("", "")
    texts = _questions(first, other).get(number)
    if texts is None or choice not in (*_CHOICES, ""):
        what = f"there is no question {number!r} with a choice {choice!r}"
        raise UsageError(what, code="unknown-name", fix="reload the page: a run may have been evaluated again")
    said = dict(zip(("question", "answer", "against"), texts, strict=True))
    add_feedback(other.root, {**said, "vote": _votes(number)[_CHOICES.index(choice)] if choice else ""})
    return choice_document(first, other)


def choice_document(first: RunDirectory, other: RunDirectory, place: int = -1) -> Block:
    """The question at a place (-1: the first that waits for a choice), with two answers in random order, unnamed.

    The order of tasks is random too, so that a person who stops early has judged a random part.
    """
    questions, kept = list(_questions(first, other).items()), read_choices(first.root, other.root)
    votes = [kept.get(texts, "") for _, texts in questions]
    if place < 0:
        place = next((place for place, vote in enumerate(votes) if not vote), len(votes))
    found: Block = {"count": len(votes), "decided": sum(map(bool, votes)), "place": place}
    if place < len(votes):
        number, (question, answer, against) = questions[place]
        order, vote = _votes(number), votes[place]
        answers = [answer, against] if order[0] == "up" else [against, answer]
        choice = _CHOICES[order.index(vote)] if vote else ""
        found |= {"id": number, "question": question, "answers": answers, "choice": choice}
    return safe(found)


def _questions(*runs: RunDirectory) -> dict[str, tuple[str, str, str]]:
    # Kept while choices are added to the runs: each would read all trajectories again.
    paths = [run.evaluations.path for run in runs]
    return _drawn(*((path, path.exists() and path.stat().st_mtime_ns) for path in paths))


@lru_cache(4)
def _drawn(*evaluated: tuple[Path, int]) -> dict[str, tuple[str, str, str]]:
    """The questions whose answers differ, each once, by a number that is drawn by the first run's seed, in order."""
    first, other = (open_compared(path.parent) for path, _ in evaluated)
    shared = [key for key in first.results if key in other.results]
    found = dict.fromkeys(texts for key in shared for texts in differing_answers(first, other, key))
    numbered = {derive_seed(first.run.info().seed, "choice", json.dumps(texts)): texts for texts in found}
    return {str(number): numbered[number] for number in sorted(numbered)}


def _votes(number: str) -> tuple[str, str, str]:
    """What each of `_CHOICES` says of the other run's answer, which is shown first for an odd number."""
    return ("up", "down", "equal") if int(number) % 2 else ("down", "up", "equal")
