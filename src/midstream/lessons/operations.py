"""Add, delete, modify, keep: how a lesson set changes, as a pure, total function.

A model proposes operations. Any list of them, on any lessons, gives new lessons and one outcome an operation. Nothing
raises, and nothing is dropped without a reason on record.

There are two steps, because the gate tries subsets of one batch: `screened` decides once which operations are sound and
gives each new lesson its id; `applied` carries out any subset of the sound ones. A person's operations
(`LessonOrigin.source`) take the same path; only they may change what is pinned or vetoed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from midstream.core.data import Frozen
from midstream.core.text import PLACE, neutral
from midstream.core.texts import kind_of
from midstream.lessons.lesson_set import (
    ID,
    Lesson,
    LessonOrigin,
    LessonSet,
    Line,
    cost,
    fitted,
    next_number,
    number,
    size,
    tokens,
    with_lessons,
)
from midstream.lessons.settings import NEAR
from midstream.lessons.similarity import Guard, ngram_similarity

Kind = Literal["add", "delete", "modify", "keep"]


class Operation(Frozen):
    """One proposed change: `id` of the lesson (of an "add": the id that `screened` gave it), the new `text`, `module`.

    A "modify" without a module leaves the lesson where it is, an "add" without one is for the first module that may
    have lessons. "keep" leaves a lesson as it is; it changes nothing, and is on record.
    """

    kind: Kind
    id: str = ""
    text: str = ""
    module: Line = ""
    origin: LessonOrigin = LessonOrigin()


class OperationOutcome(Frozen):
    """An operation, and the reason why it was `refused`; "" where it was sound."""

    operation: Operation
    refused: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Conditions of an operation. `guards` say why a text may not come into the lesson set, or None.

    `lesson_guards` do so for lessons alone: examples and instructions may hold a task that is learned from.

    `repeats`: a text may be near another of its module, as a person may want it. `subsets`: perhaps only some of the
    sound operations are carried out, as the gate does. Then the set stays within `max_tokens` whichever they are,
    so a delete makes no room for an add of the same batch. Nothing is sound that is like a change that is `waiting` for
    a person, or of its lesson, or like one that a person `rejected`.
    """

    modules: Sequence[str]
    max_tokens: int | None = None
    lesson_tokens: int | None = None
    repeats: bool = True
    waiting: Sequence[Operation] = ()
    rejected: Sequence[Operation] = ()
    guards: Sequence[Guard] = ()
    lesson_guards: Sequence[Guard] = ()
    subsets: bool = True


def screened(
    lesson_set: LessonSet, operations: Sequence[Operation], rules: Rules, *, pending: int = 0
) -> tuple[LessonSet, list[OperationOutcome]]:
    """Decide which operations are sound, one after the other; each sees the effect of those before it.

    The first `pending` ones were sound in an earlier batch: their new lessons keep the ids that they were given there.
    Lessons that contradict each other are not detected here: that is the work of the merger and the gate.

    Returns the lesson set, unchanged except for `next_number` (ids of lessons that are not accepted in the end are not
    used again), and one outcome an operation, in order, an "add" with its id.
    """
    screen = _Screen(lesson_set, rules)
    outcomes = [screen.outcome(operation, known=place < pending) for place, operation in enumerate(operations)]
    return lesson_set.model_copy(update={"next_number": screen.next_number}), outcomes


def applied(lesson_set: LessonSet, operations: Sequence[Operation]) -> LessonSet:
    """Apply sound operations in order; one that `screened` would refuse for its id changes nothing.

    Those are: on a lesson that is not there, or that a person marked; an add without an id, or with one that is taken.
    """
    lessons = {lesson.id: lesson for lesson in lesson_set.lessons}
    for operation in operations:
        before = lessons.get(operation.id)
        if operation.kind == "add" and before is None and ID.fullmatch(operation.id):
            lessons[operation.id] = _lesson(operation, None)
        elif before is not None and not _guarded(before, operation):
            if operation.kind == "delete":
                del lessons[operation.id]
            elif operation.kind == "modify":
                lessons[operation.id] = _lesson(operation, before)
    # An id that was given to a lesson and taken away again is not given a second time.
    latest = [number(add.id) + 1 for add in operations if add.kind == "add" and ID.fullmatch(add.id)]
    moved = lesson_set.model_copy(update={"next_number": max([next_number(lesson_set), *latest])})
    return with_lessons(moved, list(lessons.values()))


class _Screen:
    """The lesson set with the sound operations so far, and the room that is left in it."""

    def __init__(self, lesson_set: LessonSet, rules: Rules) -> None:
        self.rules, self.next_number = rules, next_number(lesson_set)
        self.lessons = {lesson.id: lesson for lesson in lesson_set.lessons}
        self._ids = set(self.lessons)  # of lessons that are there, or were
        self._touched: set[str] = set()
        # What waits for a person may come in later.
        waiting = (_lesson(change, self.lessons.get(change.id)) for change in rules.waiting if change.kind != "delete")
        self._size = size(lesson_set) + sum(max(0, _growth(self.lessons.get(new.id), new)) for new in waiting)

    def outcome(self, operation: Operation, *, known: bool) -> OperationOutcome:
        """Refuse the operation or accept it into the set. `known`: it has the id that an earlier batch gave it."""
        before = None if operation.kind == "add" else self.lessons.get(operation.id)
        module = operation.module or (before.module if before else next(iter(self.rules.modules), ""))
        if operation.kind in ("add", "modify"):
            operation = operation.model_copy(update={"module": module})
        operation = operation.model_copy(update={"text": fitted(module, operation.text)})
        after, refused = None, ""
        if operation.kind != "keep" and (refused := self._held(operation)):
            return OperationOutcome(operation=operation, refused=refused)
        if operation.kind == "add":
            if not (refused := self._unsound(operation, None)):
                # A pending lesson keeps its id only if an earlier batch gave it out and no lesson has had it.
                free = ID.fullmatch(operation.id) and operation.id not in self._ids
                if not (known and free and number(operation.id) < self.next_number):
                    operation = operation.model_copy(update={"id": f"L{self.next_number}"})
                    self.next_number += 1
                after = _lesson(operation, None)
        elif before is None and operation.id not in self._ids:
            refused = f"there is no lesson {operation.id!r}"
        elif before is None or (operation.kind != "keep" and operation.id in self._touched):
            refused = f"a second operation on {operation.id}"
        elif operation.kind == "keep":
            return OperationOutcome(operation=operation)
        elif _guarded(before, operation):
            refused = f"{before.id} is {before.state} by a person"
        elif operation.kind == "delete" and kind_of(before.module) == "text":
            refused = f"{before.id} is the only text of {before.module}: it can be modified"
        elif operation.kind == "modify":
            after = _lesson(operation, before)
            if (after.text, after.module) == (before.text, before.module):
                refused = f"{before.id} has this text already"
            else:
                refused = self._unsound(operation, before)
        if not refused:
            self._accept(operation, before, after)
        return OperationOutcome(operation=operation, refused=refused)

    def _accept(self, operation: Operation, before: Lesson | None, after: Lesson | None) -> None:
        growth = _growth(before, after)
        self._size += max(0, growth) if self.rules.subsets else growth
        self._touched.add(operation.id)
        self._ids.add(operation.id)
        if after is None:
            del self.lessons[operation.id]
        else:
            self.lessons[operation.id] = after

    def _unsound(self, operation: Operation, before: Lesson | None) -> str:
        """The reason why a text may not come into the lesson set, "" if it may."""
        text, rules, kind = operation.text, self.rules, kind_of(operation.module)
        held = 0 if before is None or before.state == "vetoed" else cost(before.module, before.text)
        growth = cost(operation.module, operation.text) - held
        limit = rules.lesson_tokens if kind == "lesson" else rules.max_tokens
        if not text.strip():
            return "it has no text"
        if operation.module not in rules.modules:
            return f"no lessons for {operation.module!r}, only for {', '.join(rules.modules)}"
        for place in (operation.module, before.module if before else ""):
            if kind_of(place) == "text" and (before is None or before.module != operation.module):
                return f"{place} has one text: modify it"
        if kind == "text" and before is not None:
            limit = limit and max(limit, tokens(before.text))
            if (places := sorted(PLACE.findall(before.text))) != sorted(PLACE.findall(text)):
                wanted, held = ", ".join(places) or "none", ", ".join(PLACE.findall(text)) or "none"
                return f"it must have the places of {before.id}, each once: {wanted}; it has {held}"
            if neutral(text) != text and neutral(before.text) == before.text:
                return "it holds a token of a chat template"
        if limit is not None and tokens(text) > limit:
            return f"too long: {tokens(text)} tokens, {kind}s may have {limit}"
        if twin := self._twin(operation):
            return f"{'repeats' if twin.state != 'vetoed' else 'like the vetoed'} {twin.id}"
        for guard in (*(rules.lesson_guards if kind == "lesson" else ()), *rules.guards):
            # What a text had before it was learned is not its doing.
            if (reason := guard(text)) and not (kind == "text" and before is not None and guard(before.text)):
                return reason
        if rules.max_tokens is not None and growth > 0 and self._size + growth > rules.max_tokens:
            return f"the lesson set is full: {self._size} of {rules.max_tokens} tokens, this needs {growth} more"
        return ""

    def _held(self, operation: Operation) -> str:
        """Why a decision of a person, or one that is to come, keeps the operation out; "" if none does."""

        def like(other: Operation) -> bool:
            if "delete" in (operation.kind, other.kind):
                return (operation.kind, operation.id) == (other.kind, other.id)
            if kind_of(other.module) == "text":
                return (operation.module, operation.text) == (other.module, other.text)
            return operation.module == other.module and ngram_similarity(operation.text, other.text) >= NEAR

        for change in self.rules.waiting:
            # An add has no id yet, or that of a model.
            if like(change) or (operation.kind != "add" and operation.id == change.id):
                return f"like {change.id}, which waits for a person"
        return next((f"like {each.id}, which a person rejected" for each in self.rules.rejected if like(each)), "")

    def _twin(self, operation: Operation) -> Lesson | None:
        """A lesson with the same content: of the same module, or a vetoed one, which binds models and not people."""
        for lesson in self.lessons.values():
            # Another text of the same place is most like the one that it replaces.
            if kind_of(lesson.module) == "text":
                continue
            vetoed = lesson.state == "vetoed"
            apart = operation.origin.source == "person" if vetoed else lesson.module != operation.module
            if apart or lesson.id == operation.id:
                continue
            if not self.rules.repeats:
                same = ngram_similarity(lesson.text, operation.text) >= NEAR
            else:
                # A veto holds also where repetitions are allowed.
                same = vetoed and lesson.text.casefold() == operation.text.casefold()
            if same:
                return lesson
        return None


def _guarded(lesson: Lesson, operation: Operation) -> bool:
    """Return whether a person has marked the lesson, so that only a person may change it."""
    return lesson.state != "active" and operation.origin.source != "person"


def _growth(before: Lesson | None, after: Lesson | None) -> int:
    """By how many tokens the rendered lesson set grows; negative where it shrinks."""
    old, new = (
        0 if lesson is None or lesson.state == "vetoed" else cost(lesson.module, lesson.text)
        for lesson in (before, after)
    )
    return new - old


def _lesson(operation: Operation, before: Lesson | None) -> Lesson:
    """The lesson with the operation's text, without the counts and the effect of its text `before`."""
    module, state = (before.module, before.state) if before else ("", "active")
    return Lesson(
        id=operation.id, text=operation.text, module=operation.module or module, state=state, origin=operation.origin
    )


class Diff(Frozen):
    """The changes from one lesson set to another, by the lessons' ids; pairs are (before, after).

    `modified` lessons have another text or module, `marked` ones another state; a lesson may be in both. Counts and
    effects do not count as changes.
    """

    added: tuple[Lesson, ...] = ()
    deleted: tuple[Lesson, ...] = ()
    modified: tuple[tuple[Lesson, Lesson], ...] = ()
    marked: tuple[tuple[Lesson, Lesson], ...] = ()

    @property
    def empty(self) -> bool:
        """True if nothing differs."""
        return not (self.added or self.deleted or self.modified or self.marked)


def diff(before: LessonSet, after: LessonSet) -> Diff:
    """Compare two lesson sets."""
    old = {lesson.id: lesson for lesson in before.lessons}
    both = [(old[lesson.id], lesson) for lesson in after.lessons if lesson.id in old]
    kept = {lesson.id for _, lesson in both}
    return Diff(
        added=tuple(lesson for lesson in after.lessons if lesson.id not in old),
        deleted=tuple(lesson for lesson in before.lessons if lesson.id not in kept),
        modified=tuple((one, two) for one, two in both if (one.text, one.module) != (two.text, two.module)),
        marked=tuple((one, two) for one, two in both if one.state != two.state),
    )
