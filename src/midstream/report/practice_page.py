"""The page of a practice run: results, lessons, curves, updates, cost, and what was counted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from midstream.core.trajectory import Trajectory
from midstream.report import blocks, practice_data
from midstream.report.blocks import Block, Cell, Section, chart, charts, curve, line, text
from midstream.report.numbers import Point, counted, cut, dollars, gain, gains, number, percent, shorten, summed
from midstream.report.practice_data import PracticeData, Tried, about, by_effect, fates_text, points, verdict
from midstream.report.training_page import all_evaluations, results_of
from midstream.training_free.commit import UpdateRecord
from midstream.training_free.gate import Test
from midstream.training_free.library import Effect, Lesson

FATES = {"accepted": 3, "pending": 5, "rejected": blocks.BAD, "refused": 8}  # with their colors
_CARDS_SHOWN = 25
_ROLLOUTS_SHOWN = 12
_LEAST_SPAN = 0.01  # one point: below it an axis would only magnify noise


def practice_page(data: PracticeData) -> tuple[str, list[Section]]:
    """The lead and the sections of a run."""
    return lead(data), [
        ("summary", "At a glance", [blocks.tiles(tiles(data))]),
        ("results", "Results", results(data)),
        ("lessons", "The lessons", lessons(data)),
        ("curves", "Update by update", curves(data.updates)),
        ("tried", "Tried and not accepted", not_accepted(data)),
        ("updates", "What each update did", updates(data)),
        ("cost", "Cost", [costs(data)]),
        ("counts", "What was counted and left out", [counts(data)]),
    ]


def lead(data: PracticeData) -> str:
    """What happened, in plain words with the run's numbers: the effect of the lessons, accepted changes, losses."""
    library = data.library
    sentences = ["No update of the library has finished yet."]
    if data.updates:
        planned = counted(data.updates_planned, "update")
        made = planned if len(data.updates) == data.updates_planned else f"{len(data.updates)} of {planned}"
        found = fates_text(practice_data.total_fates([record.event.fates for record in data.updates]))
        sentences = [
            f"The run made {made} of its library and never changed the model.",
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
    if library.rendered and not library.proven_for:
        sentences.append("The library as it is was accepted by no test: it is unproven.")
    lost = practice_data.left_out_text(data.updates)
    return " ".join([*sentences, f"Left out: {lost}."] if lost else sentences)


def tiles(data: PracticeData) -> list[dict[str, str]]:
    """Success, the difference, lessons, cost."""
    found: list[dict[str, str]] = []
    for pair in data.compared[:2]:
        named = (f"Success, {pair.set_name}, {pair.sampling}", percent(pair.other_success))
        found.append(blocks.tile(*named, f"{pair.tasks:,} held-out tasks", before=percent(pair.first_success)))
        difference = gain(pair.difference).replace("-", "−")
        found.append(blocks.tile("Difference", difference, f"points, 95%: {gains(pair.interval)}"))
    library, spent = data.library, data.spent
    states = [lesson.state for lesson in library.lessons]
    notes = [f"{states.count(state)} {state}" for state in ("pinned", "vetoed") if state in states]
    if library.rendered:
        notes.insert(0, "proven by a test" if library.proven_for else "unproven")
    found.append(blocks.tile("Lessons", f"{len(library.rendered):,}", ", ".join(notes)))
    rollouts, tokens = counted(spent.rollouts, "rollout"), practice_data.short(spent.tokens)
    if spent.cost_usd:
        return [*found, blocks.tile("Cost", dollars(spent.cost_usd), f"{rollouts}, {tokens} tokens")]
    return [*found, blocks.tile("Tokens", tokens, rollouts)]


# --- results ----------------------------------------------------------------------------------------------------------


def results(data: PracticeData) -> list[Block | None]:
    """The paired comparison of every test set, then sets of several families by family, and all evaluations."""
    effects = [Effect(mean=pair.difference, interval=pair.interval, pairs=pair.tasks) for pair in data.compared]
    span = span_of(effects)
    rows: list[list[Cell]] = []
    for pair, effect in zip(data.compared, effects, strict=True):
        gained: Cell = gain(pair.difference)
        rows.append(
            [
                f"{pair.set_name}, {pair.sampling}",
                f"{pair.tasks:,}",
                percent(pair.first_success),
                percent(pair.other_success),
                blocks.shift(gained) if pair.verdict in ("better", "worse") else gained,
                {"text": gains(pair.interval), "tone": "", "interval": interval_of(effect, span)},
                f"{pair.wins} / {pair.losses} / {pair.ties}",
                f"{pair.left_out:,}",
            ]
        )
    names = ("Set", "Tasks", "No lessons", "With lessons", "Points", "95% interval", "Won / lost / tied", "Left out")
    caption = "The same held-out tasks without and with lessons, paired. Left out: no result on one side."
    found = [blocks.table(caption, names, rows)]
    found += [text(f"{verdict(pair)}.") for pair in data.compared]
    found += [text(note, "soft") for note in data.notes]
    several = any(len(result.by_family) > 1 for result in data.evaluations)
    return found + (results_of(data.evaluations) if several else [all_evaluations(data.evaluations)])


def span_of(effects: Sequence[Effect | None]) -> float:
    """The half-width, in reward, of an axis that all of these fit on."""
    return max([_LEAST_SPAN, *(abs(end) for effect in effects if effect for end in (*effect.interval, effect.mean))])


def interval_of(effect: Effect | None, span: float) -> dict[str, float] | None:
    """An effect for an axis of this half-width."""
    return effect and blocks.interval(effect.mean, effect.interval, span)


# --- curves and counts ------------------------------------------------------------------------------------------------


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
            by_update("Lessons", "in the library", [(update.step, update.lessons) for update in updates], 4),
            by_update("Groups with contrast", "share of the batch", useful, 6, as_percent=True),
            by_update("Turns a rollout", "mean of learning rollouts", [(u.step, u.turns_mean) for u in updates], 3),
            by_update("Tool errors", "share of turns", errors, blocks.BAD, as_percent=True),
        ),
    ]


def counts(data: PracticeData) -> Block | None:
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


def costs(data: PracticeData) -> Block | None:
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


def _folded(cards: Sequence[dict[str, Any]], noun: str) -> list[Block | None]:
    """The first cards, and the others folded."""
    more = cards[_CARDS_SHOWN:]
    return [blocks.cards(cards[:_CARDS_SHOWN]), blocks.fold(counted(len(more), noun), blocks.cards(more))]


def lessons(data: PracticeData) -> list[Block | None]:
    """Every lesson of the newest library as a card, those with the largest measured effect first."""
    library = data.library
    if not library.lessons:
        return [text("The library is empty.", "soft")]
    span = span_of([lesson.effect for lesson in library.lessons])
    words = f"{counted(len(library.rendered), 'lesson')} in the prompts, {practice_data.proven(library)}."
    if any(lesson.effect for lesson in library.lessons):
        words += (
            " The line is the 95% interval of what the lesson did to the mean reward, on a scale of "
            f"±{span * 100:.1f} points; the dot is its estimate, the tick no effect. "
            "Helped and harmed count pairs of rollouts."
        )
    here = {lesson.id for lesson in practice_data.learned(data.versions)}
    found = [_lesson(data, lesson, span, here=lesson.id in here) for lesson in by_effect(library.lessons)]
    tested = [text(line) for line in practice_data.bundles(library)]
    return [text(words, "soft"), *tested, *_folded(found, "more lesson")]


def _lesson(data: PracticeData, lesson: Lesson, span: float, *, here: bool) -> dict[str, Any]:
    """A lesson with its effect, its counters and its origin; `here`: this run learned it."""
    effect = "effect not measured"
    if lesson.effect is not None:
        effect = points(lesson.effect) + ("" if lesson.effect.alone else ", measured only together with others")
        effect += ", accepted only as a part of its bundle" if lesson.effect.only_in_bundle else ""
    used = f"in {counted(lesson.used, 'rollout')}"
    used += f", helped {lesson.helped:,}, harmed {lesson.harmed:,}" if lesson.helped or lesson.harmed else ""
    origin, more = lesson.origin, list[Block | None]()
    if origin.tasks or origin.trajectories or origin.why:
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
        more = [blocks.fold(f"Where it comes from: {size}", *more)]
    return blocks.card(
        lesson.id,
        lesson.text,
        (about(lesson), effect, used),
        struck=lesson.state == "vetoed",
        interval=interval_of(lesson.effect, span),
        blocks=more,
        vote=True,
    )


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


def not_accepted(data: PracticeData) -> list[Block | None]:
    """Every change that was asked for and is not in the library, with the reason; the newest first."""
    found = practice_data.tried(data)[::-1]
    if not found:
        return []
    words = (
        f"{counted(len(found), 'change')}, the newest first; one that was asked for again stands where it came last."
    )
    return [text(words, "soft"), *_folded(change_cards(found), "more change")]


def change_cards(changes: Sequence[Tried]) -> list[dict[str, Any]]:
    """Each change with its old text if it had one, its fate, the reason and its effect, all on one scale."""
    span = span_of([change.effect for change in changes])
    return [
        blocks.card(
            f"{change.operation.kind} {change.operation.id}".strip(),
            change.text,
            (
                ", ".join(filter(None, (f"update {change.update}", change.operation.module))),
                f"{change.fate}, {change.why}",
                points(change.effect) if change.effect else "",
            ),
            interval=interval_of(change.effect, span),
            blocks=[text(f"in place of: {change.old}" if change.old else "", "soft")],
        )
        for change in changes
    ]


# --- updates ----------------------------------------------------------------------------------------------------------


def updates(data: PracticeData) -> list[Block | None]:
    """Every update with all that was proposed, tested and left out, newest first, each folded."""
    found = []
    for record in reversed(data.updates):
        made = f"reward {record.mean_reward:.3f}, {record.event.proposed} proposed, {fates_text(record.event.fates)}"
        after = f"{counted(record.lessons, 'lesson')} after it (version {record.version})"
        kept = sum(outcome.operation.kind == "keep" for outcome in record.proposed)
        groups = f"{record.groups:,}, of them {record.uniform:,} without contrast and {len(record.broken):,} broken"
        errors = percent(record.tool_use.error_rate)
        facts = [
            ("Groups", groups),
            ("Effort", f"{record.turns_mean:.2f} turns a rollout, {errors} of turns in error"),
            ("Spent so far", practice_data.spent_text(record.spent)),
        ]
        if kept:
            facts.append(("Asked to keep", counted(kept, "lesson")))
        if record.bisect_pairs:
            facts.append(("Compared", f"on {counted(record.bisect_pairs, 'pair')} of random halves"))
        facts += [("Failed", f"{id}: {shorten(why.partition(chr(10))[0], 200)}") for id, why in record.failed.items()]
        facts += [("Left out", f"{task}: {why}") for task, why in record.broken.items()]
        facts += [("Unreadable", reply) for reply in record.unreadable]
        found.append(
            blocks.fold(
                f"Update {record.step}, epoch {record.epoch}: {made}, {after}",
                blocks.facts(facts),
                gate_tests(record.tests, len(record.changes)),
                blocks.cards(change_cards(practice_data.decisions(data, record))),
            )
        )
    return found


def gate_tests(tests: Sequence[Test], changes: int) -> Block | None:
    """The tests of an update's `changes` changes."""
    span = span_of([Effect(mean=test.mean, interval=test.interval, pairs=test.pairs) for test in tests])
    rows: list[list[Cell]] = [
        [
            practice_data.changes_of(test, changes),
            f"{test.pairs:,}",
            f"{test.left_out:,}",
            blocks.shift(gain(test.mean)),
            {"text": gains(test.interval), "tone": "", "interval": blocks.interval(test.mean, test.interval, span)},
            practice_data.evidence(test),
            {"text": test.verdict, "tone": "up" if test.verdict == "better" else ""},
        ]
        for test in tests
    ]
    names = ("Changes", "Pairs", "Left out", "Points", "95% interval", "Evidence", "Verdict")
    words = "Tests against the library before, on fresh validation rollouts. Evidence: natural log, of what was needed."
    return blocks.table(words, names, rows, last=1)
