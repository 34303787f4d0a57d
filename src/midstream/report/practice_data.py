"""What a practice run shows, on screen and page: its records, read from its directory, and what follows from them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midstream.core.errors import RunError, UsageError
from midstream.core.metrics import EvaluationResult, Spent
from midstream.core.trajectory import Trajectory
from midstream.evaluation.pairs import Evaluated, Paired, compare
from midstream.evaluation.settings import result_name
from midstream.report.evaluation_tables import comparisons
from midstream.report.numbers import counted, dollars, gain, gains, number, summed
from midstream.runs import RunDirectory
from midstream.runs.budget import BudgetConfig, read_spent
from midstream.runs.journal import skip_damage, warn_of_damage
from midstream.training_free.commit import History, UpdateRecord, Version, read_updates
from midstream.training_free.gate import ChangeRecord, Test
from midstream.training_free.library import Effect, Lesson, Library
from midstream.training_free.operations import Operation
from midstream.training_free.settings import PracticeConfig

PRACTICE_LIMITS = """An interval shows how far the choice of tasks could move a result, not how another seed of the
whole run would turn out. A lesson's effect was measured while its update was tested, among the lessons of that time;
one that was accepted because its estimate was high is likely to do a little less than the estimate says. What is proven
is proven for this agent: another model, prompt or tool makes the library unproven until it is validated again."""

SIMULATED = """The agent's model, or the one that writes lessons, is simulated: it follows rules that are known. What
this shows is that the loop, the gate and its statistics work; it says nothing about how much a real model gains."""

_OUTSIDE = "; the rewards shown here are of the gold answers, which learning did not see"
_LEARNED_FROM = {  # by `practice.truth`
    "answer": "rollouts and their rewards",
    "majority": f"rollouts, right if they agree with most of their group{_OUTSIDE}",
    "none": f"rollouts without any grade{_OUTSIDE}",
}
_FROM_QUESTIONS = "questions alone, without a rollout"
Sample = tuple[str, Trajectory]  # what it shows ("before training"), and the trajectory
Sources = Mapping[tuple[int, str], Trajectory]  # (update, trajectory id) -> a rollout that a lesson was drawn from


@dataclass(frozen=True, kw_only=True, slots=True)
class PracticeData:
    """Everything that is shown of a practice run; every list may be empty.

    `title` is its recipe with the seed, `limits` what is not shown, in words, `next_steps` command lines. `run` is its
    directory as commands name it, `status` its state, `updates_planned` how many updates it makes at most,
    `learned_from` what graded its rollouts, in words. `compared` holds the paired comparison of the test sets without
    and with lessons, `notes` explain why one is missing. `spent` is all that was used, `costs` its parts where they
    were kept.
    """

    title: str
    samples: Sequence[Sample]
    limits: str
    next_steps: Sequence[str]
    run: str
    status: str
    updates_planned: int
    gated: bool
    learned_from: str
    budget: BudgetConfig
    updates: Sequence[UpdateRecord]
    versions: Sequence[Version]
    evaluations: Sequence[EvaluationResult]
    compared: Sequence[Paired]
    notes: Sequence[str] = ()
    spent: Spent
    costs: Mapping[tuple[str, str], Spent]  # (phase, role) -> what it used; the role of the rollouts is ""
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


def practice_data(run: RunDirectory, *, whole: bool = True) -> PracticeData:
    """All that is shown of a run; not `whole`: without the trajectories that only the report needs."""
    info, status = run.info(), run.status()
    config = PracticeConfig.model_validate(info.resolved["practice"])
    versions, updates, evaluations = (
        History(run.library_dir).all(),
        read_updates(run, skip_damage),
        run.evaluations.read(skip_damage),
    )
    costs = read_spent(run.ledger_dir / "spent.jsonl")
    # Without an account of costs, the last update knows what was spent until then.
    parts = list(costs.values()) or [update.spent for update in updates[-1:]]
    spent = Spent(**{name: sum(getattr(part, name) for part in parts) for name in Spent.model_fields})
    # A limit that was passed was raised when the run was resumed, and the new one is not on record.
    limits = config.budget.model_dump(include={"rollouts", "tokens", "cost_usd"}, exclude_none=True)
    raised = [name for name, limit in limits.items() if getattr(spent, name) > limit]
    sides = _first_and_last(run, evaluations)
    compared: list[Paired] = []
    notes: list[str] = []
    for first, last in sides:
        try:
            compared.append(compare(first, last))
        except UsageError as error:
            if isinstance(error, RunError):
                warn_of_damage(error)
            notes.append(f"{first.result.set_name} {first.result.sampling} is not compared: {error.what}")
    engines: Any = info.resolved.get("engines", {})
    simulated = any(engine.get("type") == "simulated" for engine in engines.values())
    root = shlex.quote(str(run.root))
    next_steps = [
        f"midstream library show {root}     # every lesson, where it came from and what it did",
        f"midstream library edit {root}     # change, pin or veto lessons in your editor",
        f'midstream solve "..." --planner {root}     # this agent, with its lessons',
    ]
    if compared:
        next_steps.insert(2, f"midstream compare {root}@0 {root} --tasks     # the test tasks that the lessons changed")
    if status.state == "finished" and status.message.startswith("the budget of "):  # `BudgetError.what`
        next_steps.insert(0, f'midstream resume {root} --budget "..."     # continue, with a higher limit')
    return PracticeData(
        title=f"{info.recipe_name}, seed {info.seed}",
        run=root,
        status=status.state + (f": {status.message}" if status.message else ""),
        updates_planned=config.updates if config.budget.updates is None else min(config.updates, config.budget.updates),
        gated=config.gate.enabled,
        learned_from=_LEARNED_FROM[config.truth] if config.lessons_from == "rollouts" else _FROM_QUESTIONS,
        budget=config.budget.model_copy(update=dict.fromkeys(raised)),
        updates=updates,
        versions=versions,
        evaluations=evaluations,
        compared=compared,
        notes=notes,
        spent=spent,
        costs=costs,
        sources=_sources(run, versions) if whole else {},
        samples=_samples(sides, compared) if whole else [],
        limits=" ".join(f"{SIMULATED if simulated else ''} {PRACTICE_LIMITS}".split()),
        next_steps=next_steps,
    )


def _first_and_last(run: RunDirectory, evaluations: Sequence[EvaluationResult]) -> list[tuple[Evaluated, Evaluated]]:
    """The first and the last evaluation of every set and sampling that was evaluated at two steps."""

    def evaluated(result: EvaluationResult) -> Evaluated:
        name = result_name(result.set_name, result.sampling, result.step)
        return Evaluated(name=result.policy, result=result, trajectories=run.trajectories.open(name))

    ends = [
        (first, last)
        for comparison in comparisons(evaluations)
        for first in comparison.before
        for last in comparison.after
        if first.sampling == last.sampling
    ]
    ends.sort(key=lambda pair: evaluations.index(pair[0]))  # in the recipe's order
    return [(evaluated(first), evaluated(last)) for first, last in ends]


def _sources(run: RunDirectory, versions: Sequence[Version]) -> Sources:
    """The rollouts that the library's lessons were drawn from, as far as their segments are still there."""
    wanted: dict[int, set[str]] = {}
    for lesson in learned(versions):
        wanted.setdefault(lesson.origin.update, set()).update(lesson.origin.trajectories)
    steps = [step for step in run.trajectories.steps() if step in wanted]
    return {(step, found.id): found for step in steps for found in run.trajectories.read(step, wanted[step])}


def _samples(sides: Sequence[tuple[Evaluated, Evaluated]], compared: Sequence[Paired]) -> list[Sample]:
    """One test question without and with lessons: of those that differ the one with the largest gain."""
    by_key = {(first.result.set_name, first.result.sampling): (first, last) for first, last in sides}
    for paired in compared:
        if paired.differing:
            gained = max(paired.differing, key=lambda pair: pair.difference)
            first, last = (
                next(trajectory for trajectory in side.trajectories if trajectory.task_id == gained.task_id)
                for side in by_key[paired.set_name, paired.sampling]
            )
            return [("without lessons", first), ("with lessons", last)]
    return []


def learned(versions: Sequence[Version]) -> list[Lesson]:
    """The newest version's lessons whose text this run learned; the origin of other lessons is another run."""
    here: set[tuple[str, str]] = set()
    before: set[tuple[str, str]] = set()
    for version in versions:
        now = {(lesson.id, lesson.text) for lesson in version.library.lessons}
        if version.by == "learning":
            here |= now - before
        before = now
    newest = versions[-1].library.lessons if versions else ()
    return [lesson for lesson in newest if (lesson.id, lesson.text) in here]


def text_of(versions: Sequence[Version], update: int, lesson: str) -> str:
    """A lesson's text before an update, or else in the first version that has it; "" if none has."""
    earlier = [version for version in versions if version.update < update]
    found = (version.library.find(lesson) for version in (*reversed(earlier), *versions))
    return next((lesson.text for lesson in found if lesson is not None), "")


def tried(data: PracticeData) -> list[Tried]:
    """Every change that was proposed and not accepted, by its last decision: a pending one comes up again."""
    last: dict[tuple[str, str, str], Tried] = {}
    accepted: set[tuple[str, str, str]] = set()
    for record in data.updates:
        for change in decisions(data, record):
            key = (change.operation.kind, change.operation.id, change.text)
            last.pop(key, None)
            if change.fate == "accepted":
                accepted.add(key)
            last[key] = change
    return [change for key, change in last.items() if key not in accepted]


def decisions(data: PracticeData, record: UpdateRecord) -> list[Tried]:
    """What one update decided about each change: the screen's refusals first, then the gate."""

    def change(operation: Operation, fate: str, why: str, effect: Effect | None = None) -> Tried:
        old = text_of(data.versions, record.step, operation.id) if operation.kind != "add" else ""
        text, old = (operation.text, old) if operation.text else (old, "")
        return Tried(update=record.step, operation=operation, text=text, old=old, fate=fate, why=why, effect=effect)

    refused = [each for each in record.proposed if each.refused]
    return [
        *(change(each.operation, "refused", each.refused) for each in refused),
        *(change(each.operation, each.fate, reason(each, record.tests), each.effect) for each in record.changes),
    ]


def reason(record: ChangeRecord, tests: Sequence[Test]) -> str:
    """Why the gate left a change as it did, in words."""
    if record.fate == "accepted":
        return "part of what a test found better" if tests else "accepted without a test"
    if record.effect is not None and record.fate == "rejected":
        return "no gain was measured"
    if record.effect is not None:
        return "not sure enough, so it is tried again"
    return {"rejected": "no test found it better", "pending": "it is tried again"}.get(record.fate, "nothing changed")


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
    limits = limits or {}
    writers: dict[str, Callable[[float], str]] = {"rollouts": "{:,}".format, "tokens": short, "cost_usd": dollars}
    used = {name: write(getattr(spent, name)) for name, write in writers.items()}
    used |= {name: f"{used[name]} of {write(limits[name])}" for name, write in writers.items() if name in limits}
    parts = [f"{used['rollouts']} rollout{'' if used['rollouts'] == '1' else 's'}", f"{used['tokens']} tokens"]
    if spent.cost_usd or "cost_usd" in limits:
        parts.append(used["cost_usd"])
    return ", ".join(parts)


def short(count: float) -> str:
    """A large count in three digits: "2.05M", "41.3k"."""
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if count >= max(10_000, size * 0.9995):  # three digits of 999,700 are 1M
            return f"{number(count / size)}{letter}"
    return f"{count:,}"


def left_out_text(updates: Iterable[UpdateRecord]) -> str:
    """What taught nothing, summed over the updates, in words: "uniform groups 6, lost pairs 2"; "" for nothing."""
    return counts_text(summed(record.event.left_out for record in updates))


def counts_text(counts: Mapping[str, int]) -> str:
    """The counts above 0: "uniform groups 6, lost pairs 2"; "" for none."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)


def proven(library: Library) -> str:
    """Whether the library as it is was accepted by a test, in words."""
    if not library.rendered:
        return "empty"
    return f"proven for {library.proven_for}" if library.proven_for else "unproven: no test accepted it as it is"


def verdict(pair: Paired) -> str:
    """What a pair of evaluations says, in a sentence."""
    named = f"{pair.set_name}, {pair.sampling}"
    if pair.verdict == "the same":
        return f"{named}: with and without lessons every turn of every task is the same"
    between = f"{gain(pair.difference)} points, 95% interval {gains(pair.interval)}"
    if pair.verdict == "no evidence of a difference":
        return f"{named}: no evidence that the lessons changed anything ({between})"
    return f"{named}: with lessons the agent is {pair.verdict} ({between})"


def changes_of(test: Test, count: int) -> str:
    """Which of an update's changes a test held: "all 5", "2 of 5"."""
    return f"all {count}" if len(test.changes) == count else f"{len(test.changes)} of {count}"


def evidence(test: Test) -> str:
    """The log of a test's evidence, and of what it needed."""
    return f"{test.evidence:.1f} of {test.needed:.1f}"


def bundles(library: Library) -> list[str]:
    """A line for each bundle of changes that a test accepted together: its effect, and the lessons there are of it."""
    effects = {lesson.id: lesson.effect for lesson in library.lessons if lesson.effect}
    lines = []
    for bundle in dict.fromkeys(effect.bundle for effect in effects.values() if effect.bundle):
        lessons = [name for name, effect in effects.items() if effect.bundle == bundle]
        tested = f"{gain(bundle.mean)} ({gains(bundle.interval)}) points, {counted(bundle.pairs, 'pair')}"
        others = len(bundle.changes) - len(lessons)
        more = f" and {counted(others, 'other change')}" if others else ""
        lines.append(f"tested together: {' '.join(lessons)}{more}: {tested}")
    return lines


def by_effect(lessons: Sequence[Lesson]) -> list[Lesson]:
    """The largest measured effect first, then those without one in their order."""
    return sorted(lessons, key=lambda lesson: -lesson.effect.mean if lesson.effect else 2.0)


def about(lesson: Lesson) -> str:
    """A lesson's module, where it came from and its state, in a few words."""
    learned_in = f"update {lesson.origin.update}" if lesson.origin.update else ""
    where = {"person": "by a person", "imported": "imported"}.get(lesson.origin.source, learned_in)
    return ", ".join(filter(None, (lesson.module, where, lesson.state if lesson.state != "active" else "")))


def fates_text(found: Mapping[str, int]) -> str:
    """The fates that occur, in words; "no change" for none."""
    return ", ".join(f"{count:,} {name}" for name, count in found.items() if count) or "no change"
