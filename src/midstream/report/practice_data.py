"""What a practice run holds for whoever looks at it, and what follows from its records; for screen and page alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from midstream.core.metrics import EvaluationResult, Spent
from midstream.core.trajectory import Trajectory
from midstream.evaluation.pairs import Paired
from midstream.practice.commit import UpdateRecord, left_out
from midstream.practice.gate import ChangeRecord, Test
from midstream.practice.history import Version
from midstream.practice.library import Effect, Lesson, Library
from midstream.practice.operations import Operation
from midstream.practice.settings import BudgetConfig
from midstream.report.numbers import dollars, gain, gains, number
from midstream.report.page import PageData

Sources = Mapping[tuple[int, str], Trajectory]  # (update, trajectory id) -> a rollout that a lesson was drawn from

Costs = Mapping[tuple[str, str], Spent]  # (phase, role) -> what it used; the role of the rollouts themselves is ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PracticeData(PageData):
    """Everything that is shown of a practice run; every list may be empty.

    `run` is its directory as commands name it, `status` its state, `updates_planned` how many updates it makes at
    most. `compared` holds the paired comparison of the test sets without and with lessons, `notes` explain why one is
    missing. `spent` is all that was used, `costs` its parts where they were kept.
    """

    run: str
    status: str
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
    return f"{gain(effect.mean)} ({gains(effect.interval)})"


def total_fates(updates: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The `fates` of all updates, summed. A pending change comes up again, so only the last update's count."""
    total = {name: sum(found[name] for found in updates) for name in ("accepted", "rejected", "refused")}
    return {**total, "pending": updates[-1]["pending"] if updates else 0}


def spent_text(spent: Spent, limits: Mapping[str, float] | None = None) -> str:
    """What was used, each with its limit where there is one: "1,500 of 2,000 rollouts, 2.1M tokens, $0.84".

    `limits` are those of a budget that are set (`BudgetConfig.limits`), by field of `Spent`.
    """

    def limited(name: str, value: str, write: Callable[[float], str]) -> str:
        return f"{value} of {write(limits[name])}" if limits and name in limits else value

    rollouts = limited("rollouts", f"{spent.rollouts:,}", "{:,}".format)
    parts = [
        f"{rollouts} rollout{'' if rollouts == '1' else 's'}",
        f"{limited('tokens', short(spent.tokens), short)} tokens",
    ]
    if spent.cost_usd or (limits and "cost_usd" in limits):
        parts.append(limited("cost_usd", dollars(spent.cost_usd), dollars))
    return ", ".join(parts)


def short(count: float) -> str:
    """A large count in three digits: "2.05M", "41.3k"."""
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if count >= max(10_000, size * 0.9995):  # three digits of 999,700 are 1M
            return f"{number(count / size)}{letter}"
    return f"{count:,}"


def left_out_text(updates: Iterable[UpdateRecord]) -> str:
    """What taught nothing, summed over the updates, in words: "uniform groups 6, lost pairs 2"; "" for nothing."""
    return counts_text(summed(left_out(record) for record in updates))


def summed(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """The sum of several counts, by name."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total


def counts_text(counts: Mapping[str, int]) -> str:
    """The counts above 0: "uniform groups 6, lost pairs 2"; "" for none."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)


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
    between = f"{gain(one.difference)} points, 95% interval {gains(one.interval)}"
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
