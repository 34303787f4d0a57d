"""Add, delete, modify, keep: how a library changes, as a pure, total function.

A model proposes operations; any list of them, on any library, gives a new library and, for each operation, what became
of it. Nothing raises, nothing is dropped without a word.

Two steps, because the gate tries subsets of one batch: `screened` decides once which operations are sound and gives
each new lesson its id; `applied` then carries out any of these. A person's operations (`Origin.source`) take the same
way; they alone may change what is pinned or vetoed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from midstream.core.data import Frozen
from midstream.practice.library import (
    ID,
    Lesson,
    Library,
    Line,
    Origin,
    cost,
    next_number,
    number,
    one_line,
    size,
    tokens,
    with_lessons,
)

Kind = Literal["add", "delete", "modify", "keep"]
Similarity = Callable[[str, str], float]
Leak = Callable[[str], str | None]


class Operation(Frozen):
    """One proposed change. `id`: of the lesson, for an "add" the id that `screened` gave it; `text`, `module`: the new.

    A "modify" without a module leaves the lesson where it is, an "add" without one is for the first that may have
    lessons. "keep" says that a lesson stays as it is; it changes nothing, and is on record.
    """

    kind: Kind
    id: str = ""
    text: Line = ""
    module: Line = ""
    origin: Origin = Origin()


class Outcome(Frozen):
    """What became of an operation: `refused` says why it was not sound, "" where it was."""

    operation: Operation
    refused: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What an operation must satisfy. `leak` gives the reason why a text may not stand in a library, or None.

    Texts of one module whose `likeness` is `threshold` or more repeat each other. `subsets`: perhaps only some of the
    sound operations are carried out, as the gate does. Then the library stays within `max_tokens` whichever they are,
    so a delete makes no room for an add of the same batch.
    """

    modules: Sequence[str]
    max_tokens: int | None = None
    lesson_tokens: int | None = None
    likeness: Similarity | None = None
    threshold: float = 1.0
    leak: Leak | None = None
    subsets: bool = True


def screened(
    library: Library, operations: Sequence[Operation], rules: Rules, *, pending: int = 0
) -> tuple[Library, list[Outcome]]:
    """Which operations are sound, one after the other; each sees what those before it would do.

    The first `pending` ones were sound in an earlier batch: their new lessons keep the ids that they were given there.
    Lessons that contradict each other are not told apart here: that is the merger's and the gate's work.

    Returns:
        The library with `next_number` moved on (ids of lessons that are not accepted in the end are not used again),
        its lessons as they were; and one outcome an operation, in order, an "add" with its id.
    """
    screen = _Screen(library, rules)
    outcomes = [screen.outcome(one, known=place < pending) for place, one in enumerate(operations)]
    return library.model_copy(update={"next_number": screen.next_number}), outcomes


def applied(library: Library, operations: Sequence[Operation]) -> Library:
    """The library after sound operations, in order; one that `screened` would not let through changes nothing.

    Those are: on a lesson that is not there, or that a person marked; an add without an id, or with one that is taken.
    """
    lessons = {one.id: one for one in library.lessons}
    for operation in operations:
        before = lessons.get(operation.id)
        if operation.kind == "add" and before is None and ID.fullmatch(operation.id):
            lessons[operation.id] = _new(operation)
        elif before is not None and not _guarded(before, operation):
            if operation.kind == "delete":
                del lessons[operation.id]
            elif operation.kind == "modify":
                lessons[operation.id] = _modified(before, operation)
    # An id that was given and taken away again is not given a second time.
    latest = [number(one.id) + 1 for one in operations if one.kind == "add" and ID.fullmatch(one.id)]
    moved = library.model_copy(update={"next_number": max([next_number(library), *latest])})
    return with_lessons(moved, list(lessons.values()))


class _Screen:
    """The library as the sound operations so far would leave it, and what is left of its room."""

    def __init__(self, library: Library, rules: Rules) -> None:
        self.rules = rules
        self.lessons = {one.id: one for one in library.lessons}
        self.next_number = next_number(library)
        self._before = frozenset(self.lessons)
        self._size = size(library)
        self._touched: set[str] = set()

    def outcome(self, operation: Operation, *, known: bool) -> Outcome:
        """Refuse the operation or take it up."""
        if operation.kind == "add":
            return self._add(operation, known)
        before = self.lessons.get(operation.id)
        if before is None:
            refused = self._absent(operation.id)
        elif operation.kind == "keep":
            refused = ""
        elif operation.id in self._touched:
            refused = f"a second operation on {operation.id}"
        elif _guarded(before, operation):
            refused = f"{before.id} is {before.state} by a person"
        elif operation.kind == "delete":
            refused = ""
            self._take(operation, before, None)
        else:
            return self._modify(operation, before)
        return Outcome(operation=operation, refused=refused)

    def _add(self, operation: Operation, known: bool) -> Outcome:
        module = operation.module or next(iter(self.rules.modules), "")
        operation = operation.model_copy(update={"text": one_line(operation.text), "module": module})
        refused = self._unsound(operation, growth=cost(operation.text))
        if refused:
            return Outcome(operation=operation, refused=refused)
        if not (known and ID.fullmatch(operation.id) and self._was_given(operation.id)):
            operation = operation.model_copy(update={"id": f"L{self.next_number}"})
            self.next_number += 1
        self._take(operation, None, _new(operation))
        return Outcome(operation=operation)

    def _modify(self, operation: Operation, before: Lesson) -> Outcome:
        module = operation.module or before.module
        operation = operation.model_copy(update={"text": one_line(operation.text), "module": module})
        after = _modified(before, operation)
        if (after.text, after.module) == (before.text, before.module):
            return Outcome(operation=operation, refused=f"{before.id} has this text already")
        refused = self._unsound(operation, growth=self._growth(before, after))
        if not refused:
            self._take(operation, before, after)
        return Outcome(operation=operation, refused=refused)

    def _take(self, operation: Operation, before: Lesson | None, after: Lesson | None) -> None:
        growth = self._growth(before, after)
        self._size += max(0, growth) if self.rules.subsets else growth
        self._touched.add(operation.id)
        if after is None:
            del self.lessons[operation.id]
        else:
            self.lessons[operation.id] = after

    @staticmethod
    def _growth(before: Lesson | None, after: Lesson | None) -> int:
        sizes = [0 if one is None or one.state == "vetoed" else cost(one.text) for one in (before, after)]
        return sizes[1] - sizes[0]

    def _absent(self, lesson_id: str) -> str:
        gone = lesson_id in self._before or lesson_id in self._touched
        return f"a second operation on {lesson_id}" if gone else f"there is no lesson {lesson_id!r}"

    def _was_given(self, lesson_id: str) -> bool:
        """Whether an earlier batch gave a new lesson this id and nothing has it now."""
        free = lesson_id not in self.lessons and lesson_id not in self._before and lesson_id not in self._touched
        return free and number(lesson_id) < self.next_number

    def _unsound(self, operation: Operation, growth: int) -> str:
        """Why a text may not come into the library; "" if it may."""
        text, rules = operation.text, self.rules
        if not text:
            return "it has no text"
        if operation.module not in rules.modules:
            return f"no lessons for {operation.module!r}, only for {', '.join(rules.modules)}"
        if rules.lesson_tokens is not None and tokens(text) > rules.lesson_tokens:
            return f"too long: {tokens(text)} tokens, a lesson may have {rules.lesson_tokens}"
        if twin := self._twin(operation):
            return f"{'repeats' if twin.state != 'vetoed' else 'like the vetoed'} {twin.id}"
        if reason := rules.leak(text) if rules.leak else None:
            return reason
        if rules.max_tokens is not None and growth > 0 and self._size + growth > rules.max_tokens:
            return f"the library is full: {self._size} of {rules.max_tokens} tokens, this needs {growth} more"
        return ""

    def _twin(self, operation: Operation) -> Lesson | None:
        """A lesson that says the same: of the same module, or vetoed, which binds models and not people."""
        person = operation.origin.source == "person"
        for one in self.lessons.values():
            apart = person if one.state == "vetoed" else one.module != operation.module
            if one.id != operation.id and not apart and self._alike(one, operation.text):
                return one
        return None

    def _alike(self, lesson: Lesson, text: str) -> bool:
        if self.rules.likeness is None:  # repetitions are let be, but a veto holds
            return lesson.state == "vetoed" and lesson.text.casefold() == text.casefold()
        return self.rules.likeness(lesson.text, text) >= self.rules.threshold


def _guarded(lesson: Lesson, operation: Operation) -> bool:
    """Whether a person has marked the lesson, so that only a person may change it."""
    return lesson.state != "active" and operation.origin.source != "person"


def _new(operation: Operation) -> Lesson:
    return Lesson(id=operation.id, text=operation.text, module=operation.module, origin=operation.origin)


def _modified(before: Lesson, operation: Operation) -> Lesson:
    """The lesson with a new text; what was counted and measured spoke of the old one."""
    return Lesson(
        id=before.id,
        text=operation.text,
        module=operation.module or before.module,
        state=before.state,
        origin=operation.origin,
    )
