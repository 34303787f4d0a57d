"""What a practice run holds for whoever looks at it, and what follows from its records; for screen and page alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from midstream.core.metrics import EvaluationResult
from midstream.core.stream import Template
from midstream.core.trajectory import Trajectory
from midstream.evaluation.pairs import Paired
from midstream.practice.budget import Spent
from midstream.practice.commit import UpdateRecord
from midstream.practice.gate import ChangeRecord, Test
from midstream.practice.history import Version
from midstream.practice.library import Effect, Lesson, Library
from midstream.practice.operations import Operation
from midstream.practice.settings import BudgetConfig
from midstream.report.numbers import change, counted, dollars, number

Sources = Mapping[tuple[int, str], Trajectory]  # (update, trajectory id) -> a rollout that a lesson was drawn from

Costs = Mapping[tuple[str, str], Spent]  # (phase, role) -> what it used; the role of the rollouts themselves is ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PracticeData:
    """Everything that is shown of a practice run; every list may be empty.

    `run` is its directory as commands name it, `status` how it stands, `updates_planned` how many updates it makes at
    most. `compared` holds the paired comparison of the test sets without and with lessons, `notes` say why one is
    missing. `spent` is all that was used, `costs` its parts where they were kept. `samples` are (label, trajectory)
    pairs of one task; `template` tells the parts of an interleaved policy's streams apart.
    """

    title: str
    run: str
    status: str
    recipe_toml: str
    run_info: Mapping[str, object]
    updates_planned: int
    gated: bool
    budget: BudgetConfig
    updates: Sequence[UpdateRecord]
    versions: Sequence[Version]
    evaluations: Sequence[EvaluationResult]
    compared: Sequence[Paired]
    notes: Sequence[str] = ()
    spent: Spent
    costs: Costs
    sources: Sources
    samples: Sequence[tuple[str, Trajectory]]
    template: Template | None = None
    limits: str
    next_steps: Sequence[str]

    @property
    def library(self) -> Library:
        """The newest version."""
        return self.versions[-1].library if self.versions else Library()


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A change that is not in the library: `fate` says what became of it, `why` the reason in words.

    `text` is the new text, of a "delete" that of the lesson; `old` the text that a "modify" was to replace. `update` is
    the one that said so.
    """

    update: int
    operation: Operation
    text: str
    fate: str
    why: str
    old: str = ""
    effect: Effect | None = None


def learned(versions: Sequence[Version]) -> list[Lesson]:
    """The newest version's lessons whose text this run learned: the origin of any other speaks of another run."""
    here: set[tuple[str, str]] = set()
    before: set[tuple[str, str]] = set()
    for one in versions:
        now = {(lesson.id, lesson.text) for lesson in one.library.lessons}
        here |= now - before if one.by == "learning" else set()
        before = now
    return [one for one in (versions[-1].library.lessons if versions else ()) if (one.id, one.text) in here]


def text_of(versions: Sequence[Version], update: int, lesson: str) -> str:
    """A lesson's text before an update, or else in the first version that has it; "" where none has."""
    earlier = [one for one in versions if one.update < update]
    found = (one.library.find(lesson) for one in (*reversed(earlier), *versions))
    return next((one.text for one in found if one is not None), "")


def tried(data: PracticeData) -> list[Tried]:
    """Every change that was proposed and not accepted, in the order of what was said last about each.

    A pending change comes up again in the next update; only its last fate counts.
    """
    last: dict[tuple[str, str, str], Tried] = {}
    accepted: set[tuple[str, str, str]] = set()
    for record in data.updates:
        for one in said(data, record):
            key = (one.operation.kind, one.operation.id, one.text)
            last.pop(key, None)
            if one.fate == "accepted":
                accepted.add(key)
            last[key] = one
    return [one for key, one in last.items() if key not in accepted]


def said(data: PracticeData, record: UpdateRecord) -> Iterator[Tried]:
    """What one update said about each change: the screen's refusals first, then the gate."""
    for outcome in record.proposed:
        if outcome.refused:
            yield _tried(data, record, outcome.operation, "refused", outcome.refused)
    for one in record.changes:
        yield _tried(data, record, one.operation, one.fate, reason(one, record.tests), one.effect)


def _tried(
    data: PracticeData,
    record: UpdateRecord,
    operation: Operation,
    fate: str,
    why: str,
    effect: Effect | None = None,
) -> Tried:
    old = text_of(data.versions, record.step, operation.id) if operation.kind != "add" else ""
    return Tried(
        update=record.step,
        operation=operation,
        text=operation.text or old,
        fate=fate,
        why=why,
        old=old if operation.text else "",
        effect=effect,
    )


def reason(one: ChangeRecord, tests: Sequence[Test]) -> str:
    """Why the gate left a change as it did, in words."""
    if one.fate == "accepted":
        return "part of what a test found better" if tests else "accepted without a test"
    if one.effect is not None and one.fate == "rejected":
        return "no gain was measured"
    if one.effect is not None:
        return "not sure enough, so it is tried again"
    return {"rejected": "no test found it better", "pending": "it is tried again"}.get(one.fate, "nothing changed")


def points(effect: Effect) -> str:
    """An effect in percentage points with its 95 % interval: "+3.1 (-1.9 to +8.1)"."""
    low, high = effect.interval
    return f"{change(0.0, effect.mean)} ({change(0.0, low)} to {change(0.0, high)})"


def fates(record: UpdateRecord) -> dict[str, int]:
    """How many changes of an update were accepted, rejected, left pending, and refused before any test."""
    found = {fate: sum(one.fate == fate for one in record.changes) for fate in ("accepted", "rejected", "pending")}
    return {**found, "refused": sum(bool(one.refused) for one in record.proposed)}


def total_fates(updates: Sequence[UpdateRecord]) -> dict[str, int]:
    """`fates` summed; of the pending ones those of the last update, since they come up again."""
    each = [fates(one) for one in updates]
    total = {name: sum(one[name] for one in each) for name in ("accepted", "rejected", "refused")}
    return {**total, "pending": each[-1]["pending"] if each else 0}


def proposed(record: UpdateRecord) -> int:
    """How many changes the reflector asked for in an update; to keep a lesson is none."""
    return sum(one.operation.kind != "keep" for one in record.proposed)


def spent_text(spent: Spent, budget: BudgetConfig | None = None) -> str:
    """What was used up, each with its limit where there is one: "1,500 of 2,000 rollouts, 2.1M tokens, $0.84"."""
    limits = budget or BudgetConfig()
    rollouts = (
        f"{spent.rollouts:,} of {limits.rollouts:,} rollouts"
        if limits.rollouts is not None
        else counted(spent.rollouts, "rollout")
    )
    tokens = f"{short(spent.tokens)}{'' if limits.tokens is None else f' of {short(limits.tokens)}'} tokens"
    parts = [rollouts, tokens]
    if spent.cost_usd or limits.cost_usd is not None:
        limit = "" if limits.cost_usd is None else f" of {dollars(limits.cost_usd)}"
        parts.append(f"{dollars(spent.cost_usd)}{limit}")
    return ", ".join(parts)


def short(count: int) -> str:
    """A large count in three digits: "2.05M", "41.3k"."""
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if count >= max(10_000, size * 0.9995):  # three digits of 999,700 are 1M
            return f"{number(count / size)}{letter}"
    return f"{count:,}"


def left_out(updates: Sequence[UpdateRecord]) -> dict[str, int]:
    """What taught nothing, or could not be used, summed over the updates."""
    return {
        "uniform groups": sum(one.uniform for one in updates),
        "failed rollouts": sum(len(one.failed) for one in updates),
        "broken groups": sum(len(one.broken) for one in updates),
        "lost replies": sum(len(one.unreadable) for one in updates),
        "lost pairs": sum(test.left_out for one in updates for test in one.tests),
    }


def left_out_text(updates: Sequence[UpdateRecord]) -> str:
    """`left_out` in words: "uniform groups 6, lost pairs 2"; "" for nothing."""
    return ", ".join(f"{name} {count:,}" for name, count in left_out(updates).items() if count)


def proven(library: Library) -> str:
    """Whether the library as it is was accepted by a test, in words."""
    if not library.rendered:
        return "empty"
    return f"proven for {library.proven_for}" if library.proven_for else "unproven: no test accepted it as it is"


def verdict(one: Paired) -> str:
    """What a pair of evaluations says, in a sentence."""
    named = f"{one.set_name}, {one.sampling}"
    if one.verdict == "the same":
        return f"{named}: with and without lessons every turn of every task is the same"
    low, high = (change(0.0, end) for end in one.interval)
    between = f"{change(0.0, one.difference)} points, 95% interval {low} to {high}"
    if one.verdict == "no evidence of a difference":
        return f"{named}: no evidence that the lessons changed anything ({between})"
    return f"{named}: with lessons the agent is {one.verdict} ({between})"


def changes_of(test: Test, count: int) -> str:
    """Which of an update's changes a test held: "all 5", "2 of 5"."""
    return f"all {count}" if len(test.changes) == count else f"{len(test.changes)} of {count}"


def evidence(test: Test) -> str:
    """The log of the evidence that a test came to, of what it needed."""
    return f"{test.evidence:.1f} of {test.needed:.1f}"


def by_effect(lessons: Sequence[Lesson]) -> list[Lesson]:
    """The largest measured effect first, then those without one in their order."""
    return sorted(lessons, key=lambda one: -one.effect.mean if one.effect else 2.0)


def about(one: Lesson) -> str:
    """A lesson's module, where it came from and its state, in a few words."""
    learned_in = f"update {one.origin.update}" if one.origin.update else ""
    where = {"person": "by a person", "imported": "imported"}.get(one.origin.source, learned_in)
    return ", ".join(filter(None, (one.module, where, one.state if one.state != "active" else "")))


def fates_text(found: Mapping[str, int]) -> str:
    """The fates that occur, in words; "no change" for none."""
    return ", ".join(f"{count:,} {name}" for name, count in found.items() if count) or "no change"
