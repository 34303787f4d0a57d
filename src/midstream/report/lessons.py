"""A lesson run: its records, read from its directory, and what they say in blocks.

The sections are results, lessons, curves, changes that were not accepted, updates, cost, and what was counted.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from midstream.core.errors import RunError, UsageError
from midstream.core.metrics import EvaluationResult, Spent
from midstream.core.trajectory import Trajectory
from midstream.evaluation.pairs import Evaluated, Paired, compare
from midstream.lessons.commit import History, UpdateRecord, Version, read_updates
from midstream.lessons.gate import ChangeRecord, Test
from midstream.lessons.lesson_set import Effect, Lesson, LessonSet
from midstream.lessons.operations import Operation
from midstream.lessons.settings import LessonsConfig
from midstream.report import blocks
from midstream.report.blocks import Block, Cell, Section, cell, chart, charts, curve, interval_cell, line, span_of, text
from midstream.report.evaluation import all_evaluations, comparisons, evaluated_trajectories
from midstream.report.lesson_set import bundles, by_effect, effect_span, lesson_card, points, proven
from midstream.report.numbers import (
    Point,
    counted,
    counts_text,
    cut,
    dollars,
    fates_text,
    gain,
    gains,
    number,
    percent,
    short,
    shorten,
    spent_text,
    summed,
    total_fates,
)
from midstream.report.training import results_of
from midstream.runs import RunDirectory
from midstream.runs.budget import BudgetConfig, read_spent
from midstream.runs.journal import skip_damage, warn_of_damage

FATES = {"accepted": 3, "pending": 5, "rejected": blocks.BAD, "refused": 8}  # with their colors
_ROWS_SHOWN = 24  # of updates and tests: the newest
_REASONS_SHOWN = 6  # why changes were refused, the most frequent
_CARDS_SHOWN = 25
_ROLLOUTS_SHOWN = 12
_OUTSIDE = "; the rewards shown here are of the gold answers, which learning did not see"
_LEARNED_FROM = {  # by `lessons.truth`
    "answer": "rollouts and their rewards",
    "majority": f"rollouts, right if they agree with most of their group{_OUTSIDE}",
    "none": f"rollouts without any grade{_OUTSIDE}",
}
_FROM_QUESTIONS = "questions alone, without a rollout"
Sample = tuple[str, Trajectory]  # what it shows ("before training"), and the trajectory
Sources = Mapping[tuple[int, str], Trajectory]  # (update, trajectory id) -> a rollout that a lesson was drawn from


@dataclass(frozen=True, kw_only=True, slots=True)
class LessonsData:
    """The records of a lesson run; every list may be empty.

    `run` is its directory as commands name it, `updates_planned` how many updates it makes at most, `learned_from` what
    graded its rollouts, in words. `compared` holds the paired comparison of the test sets without and with lessons,
    `notes` explain why one is missing. `spent` is all that was used, `costs` its parts by phase and role where they
    were kept; the role of the rollouts is "". `samples` is a question without and with lessons.
    """

    run: str
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
    costs: Mapping[tuple[str, str], Spent]
    sources: Sources
    samples: Sequence[Sample]

    @property
    def lesson_set(self) -> LessonSet:
        """The newest version."""
        return self.versions[-1].lesson_set if self.versions else LessonSet()


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A change that was proposed: `fate` says what became of it, `why` the reason in words.

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


def read_lesson_run(run: RunDirectory, *, whole: bool = True) -> LessonsData:
    """Read the records of a run; not `whole`: without the trajectories that only its page shows."""
    info = run.info()
    config = LessonsConfig.model_validate(info.resolved["lessons"])
    versions, updates, evaluations = (
        History(run.lessons_dir).all(),
        read_updates(run, skip_damage),
        run.evaluations.read(skip_damage),
    )
    costs = read_spent(run.ledger_dir / "spent.jsonl")
    # Without an account of costs, the last update knows what was spent until then.
    parts = list(costs.values()) or [update.spent for update in updates[-1:]]
    spent = Spent(**{name: sum(getattr(part, name) for part in parts) for name in Spent.model_fields})
    # A limit that was passed was raised when the run was resumed, and the new one is not on record.
    budget = BudgetConfig.model_validate(info.resolved.get("budget") or {})
    limits = budget.model_dump(include={"rollouts", "tokens", "cost_usd"}, exclude_none=True)
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
    return LessonsData(
        run=shlex.quote(str(run.root)),
        updates_planned=config.most_updates(budget),
        gated=config.gate.enabled,
        learned_from=_LEARNED_FROM[config.truth] if config.lessons_from == "rollouts" else _FROM_QUESTIONS,
        budget=budget.model_copy(update=dict.fromkeys(raised)),
        updates=updates,
        versions=versions,
        evaluations=evaluations,
        compared=compared,
        notes=notes,
        spent=spent,
        costs=costs,
        sources=_sources(run, versions) if whole else {},
        samples=_samples(sides, compared) if whole else [],
    )


def _first_and_last(run: RunDirectory, evaluations: Sequence[EvaluationResult]) -> list[tuple[Evaluated, Evaluated]]:
    """The first and the last evaluation of every set and sampling that was evaluated at two steps."""

    def evaluated(result: EvaluationResult) -> Evaluated:
        return Evaluated(name=result.policy, result=result, trajectories=evaluated_trajectories(run, result))

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
    """The rollouts that the lesson set's lessons were drawn from, as far as their segments are still there."""
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
        now = {(lesson.id, lesson.text) for lesson in version.lesson_set.lessons}
        if version.by == "learning":
            here |= now - before
        before = now
    newest = versions[-1].lesson_set.lessons if versions else ()
    return [lesson for lesson in newest if (lesson.id, lesson.text) in here]


def text_of(versions: Sequence[Version], update: int, lesson: str) -> str:
    """A lesson's text before an update, or else in the first version that has it; "" if none has."""
    earlier = [version for version in versions if version.update < update]
    found = (version.lesson_set.find(lesson) for version in (*reversed(earlier), *versions))
    return next((lesson.text for lesson in found if lesson is not None), "")


def decisions(data: LessonsData, record: UpdateRecord) -> list[Tried]:
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


# --- blocks -----------------------------------------------------------------------------------------------------------


def lessons_page(data: LessonsData) -> tuple[str, list[Section]]:
    """The lead and the sections of a run."""
    return lead(data), [
        ("summary", "At a glance", [blocks.tiles(tiles(data))]),
        ("results", "Results", results(data)),
        ("evaluations", "All evaluations", all_evaluations(data.evaluations)),
        ("lessons", "The lessons", lessons(data)),
        ("curves", "Update by update", curves(data.updates)),
        ("updates", "What each update did", updates(data)),
        ("cost", "Cost", [costs(data)]),
        ("counts", "What was counted and left out", [counts(data)]),
    ]


def lead(data: LessonsData) -> str:
    """What happened, in plain words with the run's numbers: the effect of the lessons, accepted changes, losses."""
    lesson_set = data.lesson_set
    sentences = ["No update of the lesson set has finished yet."]
    if data.updates:
        planned = counted(data.updates_planned, "update")
        made = planned if len(data.updates) == data.updates_planned else f"{len(data.updates)} of {planned}"
        found = fates_text(total_fates([record.event.fates for record in data.updates]))
        sentences = [
            f"The run made {made} of its lesson set and never changed the model.",
            f"It learned from {data.learned_from}.",
            f"Of the changes that were proposed: {found}.",
        ]
        if not data.gated:
            sentences.append("There was no gate: every sound change was accepted without a test.")
    if data.compared:
        pair = data.compared[0]
        tasks = f"{counted(pair.tasks, 'held-out task')} ({pair.set_name}, {pair.sampling})"
        success = f"With the lessons the agent solves {percent(pair.other_success)} of {tasks}, without them "
        success += percent(pair.first_success)
        if pair.verdict == "the same":
            sentences.append(f"{success}: every turn was the same.")
        else:
            sure = "" if pair.verdict in ("better", "worse") else ", which is no evidence of a difference"
            interval = f"95% interval {gains(pair.interval)}"
            sentences.append(f"{success}: {gain(pair.difference)} points, {interval}{sure}.")
    else:
        sentences.append("No held-out set was evaluated with and without lessons, so whether they help is not known.")
    if lesson_set.rendered and not lesson_set.proven_for:
        sentences.append("The lesson set as it is was accepted by no test: it is unproven.")
    lost = counts_text(summed(record.event.left_out for record in data.updates))
    return " ".join([*sentences, f"Left out: {lost}."] if lost else sentences)


def tiles(data: LessonsData) -> list[dict[str, str]]:
    """Success, the difference, lessons, cost."""
    found: list[dict[str, str]] = []
    for pair in data.compared[:2]:
        named = (f"Success, {pair.set_name}, {pair.sampling}", percent(pair.other_success))
        found.append(blocks.tile(*named, f"{pair.tasks:,} held-out tasks", before=percent(pair.first_success)))
        difference = gain(pair.difference).replace("-", "−")
        found.append(blocks.tile("Difference", difference, f"points, 95%: {gains(pair.interval)}"))
    lesson_set, spent = data.lesson_set, data.spent
    states = [lesson.state for lesson in lesson_set.lessons]
    notes = [f"{states.count(state)} {state}" for state in ("pinned", "vetoed") if state in states]
    if lesson_set.rendered:
        notes.insert(0, "proven by a test" if lesson_set.proven_for else "unproven")
    found.append(blocks.tile("Lessons", f"{len(lesson_set.rendered):,}", ", ".join(notes)))
    rollouts, tokens = counted(spent.rollouts, "rollout"), short(spent.tokens)
    if spent.cost_usd:
        return [*found, blocks.tile("Cost", dollars(spent.cost_usd), f"{rollouts}, {tokens} tokens")]
    return [*found, blocks.tile("Tokens", tokens, rollouts)]


def verdict(pair: Paired) -> str:
    """What a pair of evaluations says, in a sentence."""
    named = f"{pair.set_name}, {pair.sampling}"
    if pair.verdict == "the same":
        return f"{named}: with and without lessons every turn of every task is the same"
    between = f"{gain(pair.difference)} points, 95% interval {gains(pair.interval)}"
    if pair.verdict == "no evidence of a difference":
        return f"{named}: no evidence that the lessons changed anything ({between})"
    return f"{named}: with lessons the agent is {pair.verdict} ({between})"


def results(data: LessonsData) -> list[Block | None]:
    """The paired comparison of every test set, then sets of several families by family."""
    span = span_of((pair.difference, pair.interval) for pair in data.compared)
    rows: list[list[Cell]] = [
        [
            f"{pair.set_name} {pair.sampling}",
            f"{pair.tasks:,}",
            percent(pair.first_success),
            cell(percent(pair.other_success), "strong"),
            blocks.shift(gain(pair.difference)) if pair.verdict in ("better", "worse") else gain(pair.difference),
            interval_cell(pair.difference, pair.interval, span),
            f"{pair.wins}/{pair.losses}/{pair.ties}",
        ]
        for pair in data.compared
    ]
    heads = ("set", "tasks", "before", "after", "points", "95% interval", "won/lost/tied")
    found = [blocks.table("Held-out tasks, without and with lessons", heads, rows)]
    found += [text(f"{verdict(pair)}.") for pair in data.compared]
    lost = [f"{pair.set_name}: {counted(pair.left_out, 'task')} left out" for pair in data.compared if pair.left_out]
    found += [text("; ".join(lost) + ", without a result on one side" if lost else "", "warn")]
    found += [text(note, "soft") for note in data.notes]
    several = any(len(result.by_family) > 1 for result in data.evaluations)
    return found + (results_of(data.evaluations) if several or not data.evaluations else [])


def curves(updates: Sequence[UpdateRecord]) -> list[Block | None]:
    """Reward, the fate of the changes, lessons, groups and effort by update."""
    if not updates:
        return [text("No update has finished yet.", "soft")]

    def by_update(title: str, note: str, found: Sequence[Point], color: int, *, as_percent: bool = False) -> Block:
        return curve(title, note, found, color, as_percent=as_percent, x="update")

    rewards = [(update.step, update.mean_reward) for update in updates]
    useful = [(u.step, 1 - (u.uniform + len(u.broken)) / u.groups) for u in updates if u.groups]
    errors = [(update.step, update.tool_use.error_rate) for update in updates]
    total = {fate: sum(update.event.fates.get(fate, 0) for update in updates) for fate in FATES}
    bands = [
        line(fate, [(update.step, update.event.fates.get(fate, 0)) for update in updates], color)
        for fate, color in FATES.items()
        if total[fate]
    ]
    words = "What became of the changes of all updates: " + ", ".join(f"{n} {fate}" for fate, n in total.items())
    of_fates = chart("Changes", "what became of what was proposed", bands, words, x="update", as_percent=False)
    return [
        charts(
            chart(
                "Learning reward",
                "of the learning rollouts, not held out",
                [line("Mean reward of the learning rollouts", rewards)],
                x="update",
                as_percent=False,
            ),
            {**of_fates, "stacked": True} if bands else text("No change was proposed.", "soft"),
        ),
        charts(
            by_update("Lessons", "in the lesson set", [(update.step, update.lessons) for update in updates], 4),
            by_update("Groups with contrast", "share of the batch", useful, 6, as_percent=True),
            by_update("Turns a rollout", "mean of learning rollouts", [(u.step, u.turns_mean) for u in updates], 3),
            by_update("Tool errors", "share of turns", errors, blocks.BAD, as_percent=True),
        ),
    ]


def counts(data: LessonsData) -> Block | None:
    """What went into learning and what did not, each with its meaning."""
    updates = data.updates
    lost = summed(record.event.left_out for record in updates)
    pairs = sum(test.pairs for update in updates for test in update.tests)
    halves = sum(update.bisect_pairs for update in updates)
    errors = sum(result.errors for result in data.evaluations)
    failed = "an endpoint, tool or sandbox failed: left out of their group, never a reward of 0"
    broken = "fewer than two results, a tie of answers or no usable reply: left out, each named with its update"
    unreadable = "of the reflector, asked for again until its tries were spent; named with their update"
    rows = [
        ("Groups", sum(update.groups for update in updates), "all learning rollouts of one task in one update"),
        ("Groups without contrast", lost["uniform groups"], "equal rewards: nothing to compare"),
        ("Rollouts that failed", lost["failed rollouts"], failed),
        ("Groups that broke down", lost["broken groups"], broken),
        ("Replies that stayed unreadable", lost["lost replies"], unreadable),
        ("Pairs of the gate", pairs, "with a result on both sides"),
        ("Pairs without a result", lost["lost pairs"], "left out of their test"),
        ("Pairs that compared changes", halves, "one random half of the changes against the other"),
        ("Evaluation tasks without a result", errors, "counted as wrong in the tables, left out of pairs"),
    ]
    return blocks.counts("Sums over all updates.", rows)


def costs(data: LessonsData) -> Block | None:
    """What was used by phase and role where that was kept, against the limits."""
    if not data.updates and not data.costs:
        return None
    used = [(phase or "-", role or "-", spent.model_dump()) for (phase, role), spent in data.costs.items()]
    used.append(("In all", "", data.spent.model_dump()))
    if limited := bool(data.budget.limits.keys() & {"rollouts", "tokens", "cost_usd"}):
        used.append(("Limit", "", data.budget.limits))
    rows = []
    for name, role, spent in used:
        numbers = [f"{spent[key]:,}" if spent.get(key) else "-" for key in ("rollouts", "calls", "tokens")]
        rows.append([name, role, *numbers, dollars(spent["cost_usd"]) if spent.get("cost_usd") else "-"])
    caption = "What the run has used up, evaluations and the gate's rollouts included."
    names = ("Phase", "Asked by", "Rollouts", "Requests", "Tokens", "Cost")
    return blocks.table(caption, names, rows, left=2, totals=1 + limited)


# --- lessons and changes ----------------------------------------------------------------------------------------------


def _folded(cards: Sequence[Block], noun: str) -> list[Block | None]:
    """The first cards, and the others folded."""
    more = cards[_CARDS_SHOWN:]
    return [blocks.cards(cards[:_CARDS_SHOWN]), blocks.fold(counted(len(more), noun), blocks.cards(more))]


def lessons(data: LessonsData) -> list[Block | None]:
    """Every lesson of the newest lesson set as a card, those with the largest measured effect first."""
    lesson_set = data.lesson_set
    if not lesson_set.lessons:
        return [text("The lesson set is empty.", "soft")]
    span = effect_span(lesson_set.lessons)
    words = f"{counted(len(lesson_set.rendered), 'lesson')} in the prompts, {proven(lesson_set)}."
    if any(lesson.effect for lesson in lesson_set.lessons):
        words += " An effect is the change of the mean reward in points, with its 95% interval; "
        words += "helped and harmed count pairs of rollouts."
    here = {lesson.id for lesson in learned(data.versions)}
    found = [
        lesson_card(lesson, span, more=lesson_origin(data, lesson, here=lesson.id in here), vote=True)
        for lesson in by_effect(lesson_set.lessons)
    ]
    tested = [text(line) for line in bundles(lesson_set)]
    return [text(words, "soft"), *tested, *_folded(found, "more lesson")]


def lesson_origin(data: LessonsData, lesson: Lesson, *, here: bool) -> list[Block | None]:
    """Where a lesson comes from: the model's reason, and the rollouts if this run learned it (`here`)."""
    origin = lesson.origin
    if not (origin.tasks or origin.trajectories or origin.why):
        return []
    found = [data.sources.get((origin.update, name)) for name in origin.trajectories] if here else []
    rollouts = [trajectory for trajectory in found if trajectory is not None]
    more = [text(origin.why), text(f"Written by {origin.model}." if origin.model else "", "soft")]
    if not rollouts:
        named = shorten(", ".join(origin.trajectories or origin.tasks), 400)
        more.append(text(f"{'Its rollouts' if here else 'Rollouts of another run'}: {named}", "soft"))
    for task in dict.fromkeys(trajectory.task_id for trajectory in rollouts):
        of_task = [trajectory for trajectory in rollouts if trajectory.task_id == task]
        more += source_rollouts(data.run, origin.update, of_task)
    size = f"{counted(len(origin.tasks), 'task')}, {counted(len(origin.trajectories), 'rollout')}"
    return [blocks.fold(f"Where it comes from: {size}", *more)]


def source_rollouts(run: str, update: int, rollouts: Sequence[Trajectory]) -> list[Block | None]:
    """The rollouts of one task that a lesson was drawn from: question, answers, tools, the command that shows one."""
    first, rows = rollouts[0], list[list[Cell]]()
    for trajectory in rollouts[:_ROLLOUTS_SHOWN]:
        lost = trajectory.reward is None or trajectory.status != "ok"
        reward = "-" if lost or trajectory.reward is None else number(trajectory.reward.value)
        actions = [turn.action for turn in trajectory.turns]
        tools = [action.tool if action and not action.error else "malformed" for action in actions]
        answer = shorten(trajectory.answer or "(none)", 120)
        rows.append([trajectory.id, reward, answer, {"text": cut(" → ".join(tools) or "-", 80), "tone": "soft"}])
    more = len(rollouts) - _ROLLOUTS_SHOWN
    caption = f"{counted(len(rollouts), 'rollout')} of task {first.task_id}"
    caption += f", {more:,} not shown" if more > 0 else ""
    return [
        text(first.question or first.task_id),
        text("" if first.gold is None else f"Correct answer: {first.gold}"),
        blocks.table(caption, ("Rollout", "Reward", "Answer", "Tools, turn by turn"), rows, last=2),
        blocks.code(f"midstream show {run} {shlex.quote(f'step-{update:06d}/{first.id}')}"),
    ]


def change_cards(changes: Sequence[Tried]) -> list[Block]:
    """Each change with its old text if it had one, its fate, the reason and its effect, all on one scale."""
    span = span_of((change.effect.mean, change.effect.interval) for change in changes if change.effect)
    return [
        blocks.card(
            f"{change.operation.kind} {change.operation.id}".strip(),
            change.text,
            (
                ", ".join(filter(None, (f"update {change.update}", change.operation.module))),
                f"{change.fate}, {change.why}",
                points(change.effect) if change.effect else "",
            ),
            interval=change.effect and blocks.interval(change.effect.mean, change.effect.interval, span),
            blocks=[text(f"in place of: {change.old}" if change.old else "", "soft")],
        )
        for change in changes
    ]


# --- updates ----------------------------------------------------------------------------------------------------------


def updates(data: LessonsData) -> list[Block | None]:
    """A line for each update and each test of the gate, then all that each update did, folded, newest first."""
    records = data.updates
    if not records:
        return []
    total = total_fates([record.event.fates for record in records])
    words = ", ".join(f"{count:,} {name}" for name, count in total.items())
    reasons = Counter(
        # Without numbers of lessons and tokens, which make each reason another.
        re.sub(r"\b[A-Z]\d+\b", "a lesson", outcome.refused.partition(":")[0])
        for record in records
        for outcome in record.proposed
        if outcome.refused
    )
    known: list[tuple[str, object]] = [
        ("lessons", f"{counted(len(data.lesson_set.rendered), 'lesson')}, {proven(data.lesson_set)}"),
        ("changes", words + ("" if data.gated else " (no gate: accepted without a test)")),
    ]
    for place, (reason, count) in enumerate(reasons.most_common(_REASONS_SHOWN)):
        known.append(("" if place else "refused", f"{count:,} x {reason}"))
    known.append(("spent", spent_text(data.spent, data.budget.limits)))
    return [
        blocks.facts(known),
        update_table(records),
        text("groups: all/without contrast/broken; in: accepted; out: rejected, refused", "soft"),
        gate_tests([(record, test) for record in records for test in record.tests][-_ROWS_SHOWN:]),
        *(update_fold(data, record) for record in reversed(records)),
    ]


def update_table(records: Sequence[UpdateRecord]) -> Block | None:
    """One line an update, the newest of them; "so far" columns count from the start of the run."""
    heads = ["", "epoch", "reward", "groups", "asked", "in", "out", "wait", "lessons", "tokens so far"]
    priced = any(record.spent.cost_usd for record in records)
    rows: list[list[Cell]] = []
    for record in records[-_ROWS_SHOWN:]:
        fates = record.event.fates
        rows.append(
            [
                *(str(record.step), str(record.epoch), f"{record.mean_reward:.3f}"),
                cell(f"{record.groups}/{record.uniform}/{len(record.broken)}", "warn" if record.broken else ""),
                str(record.event.proposed),
                cell(str(fates["accepted"]), "up" if fates["accepted"] else ""),
                *(str(fates["rejected"] + fates["refused"]), str(fates["pending"]), str(record.lessons)),
                short(record.spent.tokens),
                *([dollars(record.spent.cost_usd)] if priced else []),
            ]
        )
    earlier = len(records) - _ROWS_SHOWN
    more = f", the newest {_ROWS_SHOWN}; {earlier:,} earlier are folded below" if earlier > 0 else ""
    return blocks.table(f"Updates of the lesson set{more}", [*heads, *["cost so far"] * priced], rows)


def gate_tests(tests: Sequence[tuple[UpdateRecord, Test]]) -> Block | None:
    """Tests of the gate: which changes, on how many pairs, the evidence, and the verdict."""
    span = span_of((test.mean, test.interval) for _, test in tests)
    rows: list[list[Cell]] = [
        [
            str(record.step),
            f"{'all' if len(test.changes) == len(record.changes) else len(test.changes)} of {len(record.changes)}",
            f"{test.pairs:,}",
            cell(f"{test.left_out:,}", "warn" if test.left_out else ""),
            blocks.shift(gain(test.mean)),
            interval_cell(test.mean, test.interval, span),
            f"{test.evidence:.1f} of {test.needed:.1f}",
            cell(test.verdict, "up" if test.verdict == "better" else ""),
        ]
        for record, test in tests
    ]
    heads = ("update", "changes", "pairs", "left out", "points", "95% interval", "evidence", "verdict")
    return blocks.table(
        "Tests of the gate, on fresh pairs; evidence: natural log, of what was needed", heads, rows, last=1
    )


def update_fold(data: LessonsData, record: UpdateRecord) -> Block | None:
    """All that was proposed, tested and left out in an update."""
    made = f"reward {record.mean_reward:.3f}, {record.event.proposed} proposed, {fates_text(record.event.fates)}"
    after = f"{counted(record.lessons, 'lesson')} after it (version {record.version})"
    kept = sum(outcome.operation.kind == "keep" for outcome in record.proposed)
    groups = f"{record.groups:,}, of them {record.uniform:,} without contrast and {len(record.broken):,} broken"
    errors = percent(record.tool_use.error_rate)
    facts = [
        ("Groups", groups),
        ("Effort", f"{record.turns_mean:.2f} turns a rollout, {errors} of turns in error"),
        ("Spent so far", spent_text(record.spent)),
        ("Asked to keep", counted(kept, "lesson") if kept else ""),
        ("Compared", f"on {counted(record.bisect_pairs, 'pair')} of random halves" if record.bisect_pairs else ""),
    ]
    facts += [("Failed", f"{id}: {shorten(why.partition(chr(10))[0], 200)}") for id, why in record.failed.items()]
    facts += [("Left out", f"{task}: {why}") for task, why in record.broken.items()]
    facts += [("Unreadable", reply) for reply in record.unreadable]
    return blocks.fold(
        f"Update {record.step}, epoch {record.epoch}: {made}, {after}",
        blocks.facts(facts),
        gate_tests([(record, test) for test in record.tests]),
        blocks.cards(change_cards(decisions(data, record))),
    )
