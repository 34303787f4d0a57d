"""What differs between two libraries, and two libraries made one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from midstream.practice.library import Lesson, Library, State, next_number, with_lessons
from midstream.practice.operations import Similarity
from midstream.practice.settings import LibraryConfig
from midstream.practice.similarity import ngram_similarity

_STRENGTH: dict[State, int] = {"active": 0, "pinned": 1, "vetoed": 2}
_THRESHOLD = LibraryConfig().likeness or 1.0


def merged(
    base: Library | None,
    one: Library,
    other: Library,
    *,
    likeness: Similarity = ngram_similarity,
    threshold: float = _THRESHOLD,
) -> tuple[Library, list[str]]:
    """Both libraries as one, and a line for everything that was not simply taken over.

    With `base`, the version that both come from, an id means one lesson: what only one side changed is taken, where
    both did `one` goes first, and of a deletion and a change the change. Counts of `base` are not taken twice.
    Without it, an id with two texts is two lessons, and the other's gets a new id.

    Near-duplicates (of one module) of the two sides are joined: the text of `one` stays, counts are added up; of a
    lesson with one id and origin, whose pasts may be one, the larger are taken. A veto goes before a pin, a pin before
    neither.
    """
    merge = _Merge(base, one, other, likeness, threshold)
    for lesson in one.lessons:
        merge.take_first(lesson)
    for lesson in other.lessons:
        merge.take_other(lesson)
    numbered = one.model_copy(update={"next_number": merge.next_number})
    return with_lessons(numbered, list(merge.lessons.values())), merge.notes


@dataclass
class _Merge:
    """The merged lessons so far, by id."""

    base: Library | None
    one: Library
    other: Library
    likeness: Similarity
    threshold: float
    lessons: dict[str, Lesson] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.next_number = max(next_number(library) for library in (self.base or self.one, self.one, self.other))
        self._old = {} if self.base is None else {lesson.id: lesson for lesson in self.base.lessons}
        self._mine = {lesson.id for lesson in self.one.lessons}
        self._theirs = {lesson.id: lesson for lesson in self.other.lessons}

    def take_first(self, lesson: Lesson) -> None:
        """A lesson of `one`: kept, unless the other side deleted it and this one left it alone."""
        old = self._old.get(lesson.id)
        if old is not None and lesson.id not in self._theirs:
            if _same(old, lesson):
                self.notes.append(f"{lesson.id} is deleted, as the other has it")
                return
            self.notes.append(f"{lesson.id} was deleted by the other and changed here: it stays")
        self.lessons[lesson.id] = lesson

    def take_other(self, lesson: Lesson) -> None:
        """A lesson of `other`: the same one, a near-duplicate, or a new one."""
        old, mine = self._old.get(lesson.id), self.lessons.get(lesson.id)
        if old is not None and lesson.id not in self._mine:
            if _same(old, lesson):
                self.notes.append(f"{lesson.id} is deleted, as the first has it")
                return
            self.notes.append(f"{lesson.id} was deleted by the first and changed by the other: it stays")
        if mine is not None and (old is not None or _said(mine) == _said(lesson)):
            self.lessons[mine.id] = self._joined(mine, lesson, old)
        elif twin := next(self._twins(lesson), None):
            self.notes.append(f"{lesson.id} of the other repeats {twin.id}: joined")
            self.lessons[twin.id] = self._joined(twin, lesson, None)
        else:
            self._add(lesson)

    def _add(self, lesson: Lesson) -> None:
        if lesson.id in self.lessons:
            new = f"L{self.next_number}"
            self.next_number += 1
            self.notes.append(f"{lesson.id} of the other is {new} here")
            lesson = lesson.model_copy(update={"id": new})
        self.lessons[lesson.id] = lesson

    def _twins(self, lesson: Lesson) -> Iterator[Lesson]:
        """The lessons of `one` that say the same; a side's own repetitions are its own affair."""
        for one in self.lessons.values():
            same_place = one.module == lesson.module and one.id in self._mine
            if same_place and self.likeness(one.text, lesson.text) >= self.threshold:
                yield one

    def _joined(self, mine: Lesson, theirs: Lesson, old: Lesson | None) -> Lesson:
        """One lesson of two: who changed the text has it, marks by their strength, counts added up."""
        taken = mine
        if old is not None and _said(mine) == _said(old) != _said(theirs):
            taken = theirs
            self.notes.append(f"{mine.id} has the other's text")
        elif old is not None and _said(theirs) not in (_said(old), _said(mine)):
            self.notes.append(f"{mine.id} was changed by both: the first's text stays")
        counts = _counts(taken) if old and _said(mine) != _said(theirs) else _added_up(mine, theirs, old)
        stale = taken.effect is None or (old is not None and taken.effect == old.effect)
        effect = theirs.effect if stale and _said(taken) == _said(theirs) else taken.effect
        return taken.model_copy(update={**counts, "id": mine.id, "state": _state(mine, theirs, old), "effect": effect})


def _added_up(mine: Lesson, theirs: Lesson, old: Lesson | None) -> dict[str, int]:
    """The counts of both; what both have from one past, once."""
    first, second = _counts(mine), _counts(theirs)
    if old is None and (mine.id, mine.origin) == (theirs.id, theirs.origin):
        return {name: max(first[name], second[name]) for name in first}
    shared = _counts(old) if old and _said(old) == _said(mine) else dict.fromkeys(first, 0)
    return {name: max(0, first[name] + second[name] - shared[name]) for name in first}


def _counts(lesson: Lesson) -> dict[str, int]:
    return {"used": lesson.used, "helped": lesson.helped, "harmed": lesson.harmed}


def _state(mine: Lesson, theirs: Lesson, old: Lesson | None) -> State:
    """The one that changed; of two changes, and where nobody knows, the stronger."""
    if old is not None and mine.state == old.state:
        return theirs.state
    if old is not None and theirs.state == old.state:
        return mine.state
    return max(mine.state, theirs.state, key=_STRENGTH.__getitem__)


def _said(lesson: Lesson) -> tuple[str, str]:
    return lesson.text, lesson.module


def _same(one: Lesson, other: Lesson) -> bool:
    return _said(one) == _said(other) and one.state == other.state
