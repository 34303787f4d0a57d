"""A lesson run: its records, read from its directory, and what they say in blocks.

The sections are results, lessons, curves, updates with their changes, and cost.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product, takewhile

from midstream.components.tables import validate
from midstream.core.errors import RunError, UsageError
from midstream.core.metrics import EvaluationResult, Spent
from midstream.evaluation.pairs import Evaluated, Paired, compare
from midstream.lessons.approval import NOBODY, Approvals, read_approvals
from midstream.lessons.commit import History, UpdateRecord, Version, read_updates
from midstream.lessons.gate import Test
from midstream.lessons.lesson_set import Lesson, LessonSet
from midstream.lessons.settings import LessonsConfig
from midstream.report import blocks
from midstream.report.blocks import Block, Cell, Section, cell, chart, charts, curve, interval_cell, line, span_of, text
from midstream.report.comparison import compared_blocks, sentence
from midstream.report.evaluation import all_evaluations, by_set, ends, evaluated_trajectories
from midstream.report.lesson_set import bundles, came_from, effect_span, lesson_card, points, proven
from midstream.report.numbers import (
    counted,
    counts_text,
    dollars,
    gain,
    gains,
    percent,
    short,
    shorten,
    total_fates,
)
from midstream.report.training import results_of
from midstream.runs import RunDirectory
from midstream.runs.budget import BudgetConfig, read_spent
from midstream.runs.journal import skip_damage, warn_of_damage

FATES = {"accepted": 3, "waiting": 2, "pending": 5, "rejected": blocks.BAD, "refused": 8}  # with their colors
_ROWS_SHOWN = 24  # of updates and tests: the newest
_REASONS_SHOWN = 6  # why changes were refused, the most frequent
_CARDS_SHOWN = 25
_OUTSIDE = "; the rewards shown here are of the gold answers, which learning did not see"
_LEARNED_FROM = {  # by `lessons.truth`
    "answer": "rollouts and their rewards",
    "majority": f"rollouts, right if they agree with most of their group{_OUTSIDE}",
    "none": f"rollouts without any grade{_OUTSIDE}",
}
_FROM_QUESTIONS = "questions alone, without a rollout"


@dataclass(frozen=True, kw_only=True, slots=True)
class LessonsData:
    """The records of a lesson run; every list may be empty.

    `run` is its directory as commands name it, `learned_from` what graded its rollouts. `compared` holds the test sets
    without and with lessons, `notes` why one is missing. `costs` are the parts of `spent` by phase and role where they
    were kept; the role of the rollouts is "". `part` is the form of the name that an update's rollouts have.
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
    said: Approvals = NOBODY
    part: str = "step-{:06d}"

    @property
    def lesson_set(self) -> LessonSet:
        """The newest version."""
        return self.versions[-1].lesson_set if self.versions else LessonSet()


def read_lesson_run(run: RunDirectory) -> LessonsData:
    """Read the records of a run."""
    resolved = run.info().resolved
    # A damaged run.json is an error that says so.
    config = validate(LessonsConfig, resolved["lessons"], "lessons", of="recipe of the run")
    updates, evaluations = read_updates(run, skip_damage), run.evaluations.read(skip_damage)
    costs = read_spent(run.ledger_dir / "spent.jsonl")
    # Without an account of costs, the last update knows what was spent until then.
    parts = list(costs.values()) or [update.spent for update in updates[-1:]]
    spent = Spent(**{name: sum(getattr(part, name) for part in parts) for name in Spent.model_fields})
    # A limit that was passed was raised when the run was resumed, and the new one is not on record.
    budget = BudgetConfig.model_validate(resolved.get("budget") or {})
    limits = budget.model_dump(include={"rollouts", "tokens", "cost_usd"}, exclude_none=True)
    raised = [name for name, limit in limits.items() if getattr(spent, name) > limit]
    compared, notes = _compared(run, evaluations)
    return LessonsData(
        run=shlex.quote(str(run.root)),
        updates_planned=config.most_updates(budget),
        gated=config.gate.enabled,
        learned_from=_LEARNED_FROM[config.truth] if config.lessons_from == "rollouts" else _FROM_QUESTIONS,
        budget=budget.model_copy(update=dict.fromkeys(raised)),
        updates=updates,
        versions=History(run.lessons_dir).all(),
        evaluations=evaluations,
        compared=compared,
        notes=notes,
        spent=spent,
        costs=costs,
        part="step-{:06d}" if run.info().kind == "lessons" else "eval-update-{}",
        said=read_approvals(run, skip_damage),
    )


def _compared(run: RunDirectory, evaluations: Sequence[EvaluationResult]) -> tuple[list[Paired], list[str]]:
    """The first and the last evaluation of every set and sampling, paired, and why some are not."""

    def evaluated(result: EvaluationResult) -> Evaluated:
        return Evaluated(name=result.policy, result=result, trajectories=evaluated_trajectories(run, result))

    found: list[Paired] = []
    notes: list[str] = []
    sides = [ends(results) for kinds in by_set(evaluations).values() for results in kinds.values()]
    for first, last in (pair for side in sides for pair in product(*side)):
        if first.sampling == last.sampling:
            try:
                found.append(compare(evaluated(first), evaluated(last)))
            except UsageError as error:
                if isinstance(error, RunError):
                    warn_of_damage(error)
                notes.append(f"{first.set_name} {first.sampling} is not compared: {error.what}")
    return found, notes


# --- blocks -----------------------------------------------------------------------------------------------------------


def lessons_page(data: LessonsData) -> tuple[str, list[Section]]:
    """The lead and the sections of a run."""
    return lead(data), [
        ("summary", "At a glance", [blocks.tiles(tiles(data))]),
        ("waiting", "Waiting for a person", waiting(data.said)),
        ("results", "Results", results(data)),
        ("evaluations", "All evaluations", all_evaluations(data.evaluations)),
        ("lessons", "The lessons", lessons(data)),
        ("curves", "Update by update", curves(data.updates)),
        ("updates", "What each update did", updates(data)),
        ("cost", "Cost", [costs(data)]),
    ]


def lead(data: LessonsData) -> str:
    """What happened, in plain words with the run's numbers: the effect of the lessons, accepted changes, losses."""
    lesson_set = data.lesson_set
    sentences = ["No update of the lesson set has finished yet."]
    if data.updates:
        planned = counted(data.updates_planned, "update")
        made = planned if len(data.updates) == data.updates_planned else f"{len(data.updates)} of {planned}"
        fates = total_fates([record.event.fates for record in data.updates])
        found = counts_text(fates).replace("waiting", "left to a person") or "no change"
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
        success = f"{percent(pair.other_success)} of {tasks}, without them {percent(pair.first_success)}"
        names = {pair.first: "the agent without them", pair.other: "the agent with them"}
        sentences.append(f"With the lessons the agent solves {success}: {sentence(names, pair)}.")
    else:
        sentences.append("No held-out set was evaluated with and without lessons, so whether they help is not known.")
    if count := len(data.said.waiting):
        sentences.append(f"{counted(count, 'change')} to decide on: midstream lessons waiting {data.run}.")
    measured, newest = (data.updates[-1].version, data.versions[-1]) if data.updates and data.versions else (0, None)
    if newest is not None and newest.number != measured:
        run = f"midstream eval {data.run}"
        sentences.append(f"It is version {newest.number} since ({newest.by}), which was not evaluated: {run}.")
    if lesson_set.rendered and not lesson_set.proven_for:
        sentences.append("The lesson set as it is was accepted by no test: it is unproven.")
    lost = counts_text(sum((Counter(record.event.left_out) for record in data.updates), Counter()))
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
    note = "proven by a test" if lesson_set.proven_for else "unproven" if lesson_set.rendered else ""
    found.append(blocks.tile("Lessons", f"{len(lesson_set.rendered):,}", note))
    rollouts, tokens = counted(spent.rollouts, "rollout"), short(spent.tokens)
    if spent.cost_usd:
        return [*found, blocks.tile("Cost", dollars(spent.cost_usd), f"{rollouts}, {tokens} tokens")]
    return [*found, blocks.tile("Tokens", tokens, rollouts)]


def results(data: LessonsData) -> list[Block | None]:
    """The paired comparison of every test set, then sets of several families by family."""
    found: list[Block | None] = []
    for pair in data.compared:
        found += compared_blocks({pair.first: pair.first, pair.other: pair.other}, [pair])
    found += [text(note, "soft") for note in data.notes]
    several = any(len(result.by_family) > 1 for result in data.evaluations)
    return found + (results_of(data.evaluations) if several or not data.evaluations else [])


def curves(updates: Sequence[UpdateRecord]) -> list[Block | None]:
    """Reward, the fate of the changes, lessons, groups and effort by update."""
    if not updates:
        return [text("No update has finished yet.", "soft")]

    rewards = [(update.step, update.mean_reward) for update in updates]
    useful = [(u.step, 1 - (u.uniform + len(u.broken)) / u.groups) for u in updates if u.groups]
    sizes, turns = [(u.step, u.lessons) for u in updates], [(u.step, u.turns_mean) for u in updates]
    by_fate = {fate: [(update.step, update.event.fates.get(fate, 0)) for update in updates] for fate in FATES}
    bands = [line(fate, by_fate[fate], color) for fate, color in FATES.items() if any(n for _, n in by_fate[fate])]
    shown = {"x": "update", "as_percent": False}
    learning = [line("Mean reward of the learning rollouts", rewards)]
    fates = chart("Changes", "what became of what was proposed", bands, stacked=True, **shown)
    return [
        charts(
            chart("Learning reward", "of the learning rollouts, not held out", learning, **shown),
            fates if bands else text("No change was proposed.", "soft"),
        ),
        charts(
            curve("Lessons", "in the lesson set", sizes, 4, x="update"),
            curve("Groups with contrast", "share of the batch", useful, 6, as_percent=True, x="update"),
            curve("Turns a rollout", "mean of learning rollouts", turns, 3, x="update"),
        ),
    ]


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
    # Lessons that the run started with come from rollouts of another run.
    start = data.versions[0].lesson_set if data.versions[0].by == "start" else LessonSet()
    brought = [(lesson.id, lesson.origin) for lesson in start.lessons]
    cards = []
    # The largest measured effect first, then those without one in their order.
    for lesson in sorted(lesson_set.lessons, key=lambda lesson: -lesson.effect.mean if lesson.effect else 2.0):
        here = (lesson.id, lesson.origin) not in brought
        cards.append(
            lesson_card(lesson, span, more=[lesson_origin(data.run, lesson, here=here, part=data.part)], vote=True)
        )
    more = cards[_CARDS_SHOWN:]
    return [
        text(words, "soft"),
        *(text(line) for line in bundles(lesson_set)),
        blocks.cards(cards[:_CARDS_SHOWN]),
        blocks.fold(counted(len(more), "more lesson"), blocks.cards(more)),
    ]


def lesson_origin(run: str, lesson: Lesson, *, here: bool, part: str) -> Block | None:
    """Where a lesson comes from: the model's reason, and the rollouts, which this run has if it is learned `here`.

    `part` is the form of the name that an update's rollouts have.
    """
    origin = lesson.origin
    if not (origin.tasks or origin.trajectories or origin.why):
        return None
    place = part.format(origin.update)
    shown = [f"midstream show {run} {shlex.quote(f'{place}/{id}')}" for id in origin.trajectories[:1]]
    return blocks.fold(
        "Where it comes from",
        text(origin.why),
        text(came_from(origin) + ("" if here else "; of another run"), "soft"),
        blocks.code("\n".join(shown if here else ())),
    )


def waiting(said: Approvals) -> list[Block | None]:
    """What waits for a person: each text against the present one, effect, tests and origin; and what is approved."""
    span, rows, found = effect_span(said.waiting), list[list[Cell]](), list[Block]()
    for change in said.waiting:
        operation, effect, facts = change.operation, change.effect, dict[str, object]()
        rows.append([operation.id, change.place, operation.kind, "-", "-"])
        if effect:
            drawn = blocks.interval(effect.mean, effect.interval, span)
            facts["effect"] = cell(f"{points(effect)} points, {counted(effect.pairs, 'pair')}", interval=drawn)
            rows[-1][-2:] = points(effect), str(effect.pairs)
        for test in change.tests:
            what = "alone" if len(test.changes) == 1 else f"{len(test.changes)} changes together"
            what += f", {gain(test.mean)} ({gains(test.interval)}) points, {counted(test.pairs, 'pair')}"
            facts[f"gate, {test.name}"] = f"{what}, evidence {test.evidence:.1f} of {test.needed:.1f}: {test.verdict}"
        facts |= {"from": came_from(operation.origin), "why": operation.origin.why}
        title = f"{operation.kind} {operation.id}, {change.place}, update {change.update}"
        asked = change.update, operation.id
        found.append(blocks.change(asked, title, blocks.difference(change.diff), blocks.facts(facts)))
    names = ("id", "place", "change", "effect (95% interval)", "pairs")
    approved = " ".join(change.operation.id for change in said.approved)
    later = text(f"approved, in use from the next update: {approved}" if approved else "", "up")
    return [later, blocks.table("", names, rows, left=3), *found]


def change_cards(data: LessonsData, record: UpdateRecord) -> list[Block]:
    """What became of each change of an update, with its old text if it had one; effects are on one scale."""
    span = effect_span(record.changes)
    earlier = list(takewhile(lambda version: version.update < record.step, data.versions))
    before = earlier[-1].lesson_set if earlier else LessonSet()
    tried = [(each.operation, f"refused: {each.refused}", None) for each in record.proposed if each.refused]
    accepted = "accepted" if record.tests else "accepted without a test"
    words = {"accepted": accepted, "pending": "pending: it is tried again", "waiting": "left to a person"}
    tried += [(each.operation, words.get(each.fate, each.fate), each.effect) for each in record.changes]
    found = []
    for operation, fate, effect in tried:
        lesson = before.find(operation.id) if operation.kind != "add" else None
        old = lesson.text if lesson else ""
        found.append(
            blocks.card(
                f"{operation.kind} {operation.id}".strip(),
                operation.text or old,
                [operation.module, fate, points(effect) if effect else ""],
                interval=effect and blocks.interval(effect.mean, effect.interval, span),
                blocks=[text(f"in place of: {old}" if old and operation.text else "", "soft")],
            )
        )
    return found


# --- updates ----------------------------------------------------------------------------------------------------------


def updates(data: LessonsData) -> list[Block | None]:
    """A line for each update and each test of the gate, then all that each update did, folded, newest first."""
    records = data.updates
    if not records:
        return []
    reasons = Counter(
        # Without numbers of lessons and tokens, which make each reason another.
        re.sub(r"\b[A-Z]\d+\b", "a lesson", outcome.refused.partition(":")[0])
        for record in records
        for outcome in record.proposed
        if outcome.refused
    )
    refused = [f"{count:,} x {reason}" for reason, count in reasons.most_common(_REASONS_SHOWN)]
    return [
        update_table(records),
        text("groups: all/without contrast/broken; in: accepted; out: rejected, refused; wait: a person, too", "soft"),
        text(f"refused: {'; '.join(refused)}" if refused else "", "soft"),
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
                str(fates["rejected"] + fates["refused"]),
                *(str(fates["pending"] + fates["waiting"]), str(record.lessons)),
                short(record.spent.tokens),
                *([dollars(record.spent.cost_usd)] if priced else []),
            ]
        )
    earlier = len(records) - _ROWS_SHOWN
    more = f", the newest {_ROWS_SHOWN}; {earlier:,} earlier are folded below" if earlier > 0 else ""
    return blocks.table(f"Updates of the lesson set{more}", [*heads, *["cost so far"] * priced], rows)


def verdict_of(test: Test) -> str:
    """The verdict in words; of a test of removals and shorter texts, whether they cost at most the margin."""
    if not test.margin:
        return test.verdict
    words = {"better": "equal worth", "not better": "worth more as it was", "undecided": "undecided"}
    return words[test.verdict]


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
            cell(verdict_of(test), "up" if test.verdict == "better" else ""),
        ]
        for record, test in tests
    ]
    heads = ("update", "changes", "pairs", "left out", "points", "95% interval", "evidence", "verdict")
    return blocks.table(
        "Tests of the gate, on fresh pairs; evidence: natural log, of what was needed", heads, rows, last=1
    )


def update_fold(data: LessonsData, record: UpdateRecord) -> Block | None:
    """All that was proposed, tested and left out in an update."""
    facts = [
        *(("Failed", f"{id}: {shorten(why.partition(chr(10))[0], 200)}") for id, why in record.failed.items()),
        *(("Left out", f"{task}: {why}") for task, why in record.broken.items()),
        *(("Unreadable", reply) for reply in record.unreadable),
    ]
    return blocks.fold(
        f"Update {record.step}: {record.event.proposed} proposed, {counts_text(record.event.fates) or 'no change'}, "
        f"{counted(record.lessons, 'lesson')} after it (version {record.version})",
        blocks.facts(facts),
        gate_tests([(record, test) for test in record.tests]),
        blocks.cards(change_cards(data, record)),
    )
