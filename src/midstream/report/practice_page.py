"""The report of a practice run as one HTML file: results, lessons, curves, updates, cost."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from midstream.core.trajectory import Trajectory
from midstream.report import html, practice_data
from midstream.report.charts import Frame, Series, axes, end_labels, line_chart, svg
from midstream.report.html import cell, heads, small_curve, text
from midstream.report.numbers import buckets, counted, cut, dollars, gain, gains, number, percent, shorten, summed
from midstream.report.practice_data import PracticeData, Tried, about, by_effect, fates_text, points, verdict
from midstream.report.training_page import all_evaluations, results_of
from midstream.training_free.commit import UpdateRecord
from midstream.training_free.gate import Test
from midstream.training_free.library import Effect, Lesson

FATE_COLORS = {"accepted": "c3", "pending": "c5", "rejected": "bad", "refused": "c8"}
_CARDS_SHOWN = 25
_TEXT_LIMIT = 600
_ROLLOUTS_SHOWN = 12
_LEAST_SPAN = 0.01  # one point: below it a whisker chart would only magnify noise


def render_practice(data: PracticeData) -> str:
    """The report as HTML text."""
    parts: list[html.Part] = [
        ("results", "Results", results(data)),
        ("lessons", "The lessons", lessons(data)),
        ("curves", "Update by update", curves(data.updates)),
        ("tried", "Tried and not accepted", not_accepted(data)),
        ("updates", "What each update did", updates(data)),
        ("cost", "Cost", costs(data)),
        ("counts", "What was counted and left out", [counts(data)]),
        ("runs", "One question, turn by turn", [html.sample_runs(data.samples, data.template)] if data.samples else []),
    ]
    return html.page(data, summary(data), cards(data), parts)


def summary(data: PracticeData) -> str:
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


def cards(data: PracticeData) -> list[html.Card]:
    """The numbers at the top of the page: success, the difference, lessons, cost."""
    found: list[html.Card] = []
    for pair in data.compared[:2]:
        change = html.arrow(percent(pair.first_success), percent(pair.other_success))
        found.append((f"Success, {pair.set_name}, {pair.sampling}", change, f"{pair.tasks:,} held-out tasks"))
        difference = text(gain(pair.difference).replace("-", "−"))
        found.append(("Difference", difference, f"points, 95%: {gains(pair.interval)}"))
    library, spent = data.library, data.spent
    states = [lesson.state for lesson in library.lessons]
    notes = [f"{states.count(state)} {state}" for state in ("pinned", "vetoed") if state in states]
    if library.rendered:
        notes.insert(0, "proven by a test" if library.proven_for else "unproven")
    found.append(("Lessons", f"{len(library.rendered):,}", ", ".join(notes)))
    rollouts = counted(spent.rollouts, "rollout")
    if spent.cost_usd:
        found.append(("Cost", text(dollars(spent.cost_usd)), f"{rollouts}, {practice_data.short(spent.tokens)} tokens"))
    else:
        found.append(("Tokens", practice_data.short(spent.tokens), rollouts))
    return found


# --- results ----------------------------------------------------------------------------------------------------------


def results(data: PracticeData) -> list[str]:
    """The paired comparison of every test set, then sets of several families by family, and all evaluations."""
    effects = [Effect(mean=pair.difference, interval=pair.interval, pairs=pair.tasks) for pair in data.compared]
    span = whisker_span(effects)
    rows = []
    for pair, effect in zip(data.compared, effects, strict=True):
        gained = gain(pair.difference)
        cells = [cell(f"{pair.tasks:,}"), cell(percent(pair.first_success)), cell(percent(pair.other_success))]
        cells.append(html.shift(gained) if pair.verdict in ("better", "worse") else cell(gained))
        cells += [f'<td class="whisker">{whisker(effect, span)}</td>', cell(gains(pair.interval))]
        cells += [cell(f"{pair.wins} / {pair.losses} / {pair.ties}"), cell(f"{pair.left_out:,}")]
        rows.append(html.row(f"{pair.set_name}, {pair.sampling}", *cells))
    head = heads("Set", "Tasks", "No lessons", "With lessons", "Points")
    head += heads("", "95% interval", "Won / lost / tied", "Left out")
    caption = "The same held-out tasks without and with lessons, paired. Left out: no result on one side."
    found = [html.table(caption, head, rows)] if rows else []
    found.append("".join(f"<p>{text(verdict(pair))}.</p>" for pair in data.compared))
    found += [f'<p class="soft">{text(note)}</p>' for note in data.notes]
    several = any(len(result.by_family) > 1 for result in data.evaluations)
    return found + (results_of(data.evaluations) if several else [all_evaluations(data.evaluations)])


# --- curves and counts ------------------------------------------------------------------------------------------------


def curves(updates: Sequence[UpdateRecord]) -> list[str]:
    """Reward, the fate of the changes, lessons, groups and effort by update."""
    if not updates:
        return ['<p class="empty">No update has finished yet.</p>']
    rewards = buckets([(update.step, update.mean_reward) for update in updates], html.LINE_POINTS)
    name = "Mean reward of the learning rollouts"
    words = html.in_words(name, rewards, as_percent=False, unit="update")
    last = html.last_value(rewards, as_percent=False)
    line = Series(name=name, points=rewards, marks=len(rewards) < 30, label=last)
    reward = line_chart([line], summary=words, y_range=(0.0, 1.0), as_percent=False, x_label="update")
    useful = [(u.step, 1 - (u.uniform + len(u.broken)) / u.groups) for u in updates if u.groups]
    turns = [(update.step, update.turns_mean) for update in updates]
    errors = [(update.step, update.tool_use.error_rate) for update in updates]
    bars = fate_bars([(update.step, update.event.fates) for update in updates])
    return [
        html.charts(
            html.figure("Learning reward", "of the learning rollouts, not held out", reward),
            html.figure("Changes", "what became of what was proposed", bars),
        ),
        html.charts(
            small_curve("Lessons", "in the library", [(u.step, u.lessons) for u in updates], "c4", unit="update"),
            small_curve("Groups with contrast", "share of the batch", useful, "c6", unit="update", as_percent=True),
            small_curve("Turns a rollout", "mean of learning rollouts", turns, "c3", unit="update"),
            small_curve("Tool errors", "share of turns", errors, "bad", unit="update", as_percent=True),
            size="small",
        ),
    ]


def fate_bars(updates: Sequence[tuple[int, Mapping[str, int]]]) -> str:
    """One stacked bar an update: how many changes were accepted, left pending, rejected, refused."""
    most = max((sum(found.values()) for _, found in updates), default=0)
    if not most:
        return '<p class="empty">No change was proposed.</p>'
    x_range, y_range = (updates[0][0] - 0.6, updates[-1][0] + 0.6), (0.0, most * 1.05)
    frame = Frame(width=400.0, height=230.0, x_range=x_range, y_range=y_range, right=74.0, left=28.0, as_percent=False)
    width = min(34.0, 0.7 * (frame.x(1) - frame.x(0)))
    bars = []
    for step, found in updates:
        floor = 0
        title = f"update {step}: " + ", ".join(f"{found.get(fate, 0)} {fate}" for fate in FATE_COLORS)
        for fate, color in FATE_COLORS.items():
            if count := found.get(fate, 0):
                top, bottom = frame.y(floor + count), frame.y(floor)
                place = f'x="{frame.x(step) - width / 2:.1f}" y="{top:.1f}"'
                size = f'width="{width:.1f}" height="{bottom - top:.1f}"'
                bars.append(f'<rect class="area {color}" {place} {size}><title>{title}</title></rect>')
                floor += count
    total = {fate: sum(found.get(fate, 0) for _, found in updates) for fate in FATE_COLORS}
    # Labels stand in the order of a bar's parts, from the bottom.
    height = (frame.height - frame.top - frame.bottom) / 5
    shown = [fate for fate, count in total.items() if count]
    labels = [(frame.y(0) - (place + 0.5) * height, fate, FATE_COLORS[fate]) for place, fate in enumerate(shown)]
    summary = "What became of the changes of all updates: " + ", ".join(f"{n} {fate}" for fate, n in total.items())
    return svg(frame.width, frame.height, summary, axes(frame, "update") + "".join(bars) + end_labels(frame, labels))


def counts(data: PracticeData) -> str:
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
    return html.count_table("Sums over all updates.", rows)


def costs(data: PracticeData) -> list[str]:
    """What was used by phase and role where that was kept, against the limits."""
    if not data.updates and not data.costs:
        return []
    used = [(phase or "-", role or "-", spent.model_dump()) for (phase, role), spent in data.costs.items()]
    used.append(("In all", "", data.spent.model_dump()))
    if data.budget.limits.keys() & {"rollouts", "tokens", "cost_usd"}:
        used.append(("Limit", "", data.budget.limits))
    rows = []
    for name, role, spent in used:
        numbers = [f"{spent[key]:,}" if spent.get(key) else "-" for key in ("rollouts", "calls", "tokens")]
        numbers.append(dollars(spent["cost_usd"]) if spent.get("cost_usd") else "-")
        rows.append(html.row(name, cell(role, ""), *map(cell, numbers), total=name == "In all"))
    head = heads("Phase", "Asked by", "Rollouts", "Requests", "Tokens", "Cost", left=2)
    return [html.table("What the run has used up, evaluations and the gate's rollouts included.", head, rows)]


# --- lessons and changes ----------------------------------------------------------------------------------------------


def lessons(data: PracticeData) -> list[str]:
    """Every lesson of the newest library as a card, those with the largest measured effect first."""
    library = data.library
    if not library.lessons:
        return ['<p class="empty">The library is empty.</p>']
    span = whisker_span([lesson.effect for lesson in library.lessons if lesson.effect])
    words = f"{counted(len(library.rendered), 'lesson')} in the prompts, {practice_data.proven(library)}."
    if any(lesson.effect for lesson in library.lessons):
        words += (
            " The line is the 95% interval of what the lesson did to the mean reward, on a scale of "
            f"±{span * 100:.1f} points; the dot is its estimate, the tick no effect. "
            "Helped and harmed count pairs of rollouts."
        )
    here = {lesson.id for lesson in practice_data.learned(data.versions)}
    shown = [lesson_card(data, lesson, span, here=lesson.id in here) for lesson in by_effect(library.lessons)]
    return [f'<p class="soft">{text(words)}</p>', *html.folded(shown, _CARDS_SHOWN, "more lesson")]


def lesson_card(data: PracticeData, lesson: Lesson, span: float, *, here: bool) -> str:
    """A lesson with its effect, its counters and its origin; `here`: this run learned it."""
    effect = '<span class="soft">effect not measured</span>'
    if lesson.effect is not None:
        together = "" if lesson.effect.alone else ", measured only together with others"
        effect = f"{whisker(lesson.effect, span)}<span>{text(points(lesson.effect) + together)}</span>"
    numbers = f"in {counted(lesson.used, 'rollout')}"
    numbers += f", helped {lesson.helped:,}, harmed {lesson.harmed:,}" if lesson.helped or lesson.harmed else ""
    origin, source = lesson.origin, ""
    if origin.tasks or origin.trajectories or origin.why:
        found = [data.sources.get((origin.update, name)) for name in origin.trajectories] if here else []
        rollouts = [trajectory for trajectory in found if trajectory is not None]
        source = f"<p>{text(shorten(origin.why, _TEXT_LIMIT))}</p>" if origin.why else ""
        source += f'<p class="soft">Written by {text(origin.model)}.</p>' if origin.model else ""
        if not rollouts:
            named = shorten(", ".join(origin.trajectories or origin.tasks), 400)
            source += f'<p class="soft">{"Its rollouts" if here else "Rollouts of another run"}: {text(named)}</p>'
        for task in dict.fromkeys(trajectory.task_id for trajectory in rollouts):
            of_task = [trajectory for trajectory in rollouts if trajectory.task_id == task]
            source += source_rollouts(data.run, origin.update, of_task)
        size = f"{counted(len(origin.tasks), 'task')}, {counted(len(origin.trajectories), 'rollout')}"
        source = html.details(f"Where it comes from: {size}", source)
    struck = ' class="vetoed"' if lesson.state == "vetoed" else ""
    words = f"<span{struck}>{text(shorten(lesson.text, _TEXT_LIMIT))}</span>"
    return _card(lesson.id, words, f"<span>{text(about(lesson))}</span>{effect}<span>{text(numbers)}</span>", source)


def _card(name: str, words: str, facts: str, more: str = "") -> str:
    """A lesson or change: its words, then facts about it, then what can be opened, all HTML but the name."""
    return (
        f'<article class="lesson"><p class="lesson-text"><b>{text(name)}</b> {words}</p>'
        f'<p class="lesson-facts">{facts}</p>{more}</article>'
    )


def source_rollouts(run: str, update: int, rollouts: Sequence[Trajectory]) -> str:
    """The rollouts of one task that a lesson was drawn from: question, answers, tools, the command that shows one."""
    first = rollouts[0]
    gold = "" if first.gold is None else f" Correct answer: <b>{text(shorten(first.gold, 200))}</b>"
    rows = []
    for trajectory in rollouts[:_ROLLOUTS_SHOWN]:
        lost = trajectory.reward is None or trajectory.status != "ok"
        reward = "-" if lost or trajectory.reward is None else number(trajectory.reward.value)
        actions = [turn.action for turn in trajectory.turns]
        tools = [action.tool if action and not action.error else "malformed" for action in actions]
        rows.append(
            f"<tr>{cell(trajectory.id, '')}{cell(reward)}{cell(shorten(trajectory.answer or '(none)', 120), 'wrap')}"
            f"{cell(cut(' → '.join(tools) or '-', 80), 'wrap soft')}</tr>"
        )
    more = len(rollouts) - _ROLLOUTS_SHOWN
    caption = f"{counted(len(rollouts), 'rollout')} of task {first.task_id}"
    caption += f", {more:,} not shown" if more > 0 else ""
    command = f"midstream show {run} {shlex.quote(f'step-{update:06d}/{first.id}')}"
    table = html.table(caption, [*heads("Rollout", "Reward"), *heads("Answer", "Tools, turn by turn", left=2)], rows)
    return (
        f"<p>{text(shorten(first.question or first.task_id, _TEXT_LIMIT))}{gold}</p>{table}<pre>{text(command)}</pre>"
    )


def not_accepted(data: PracticeData) -> list[str]:
    """Every change that was asked for and is not in the library, with the reason; the newest first."""
    found = practice_data.tried(data)[::-1]
    if not found:
        return []
    changes = counted(len(found), "change")
    words = f"{changes}, the newest first; one that was asked for again stands where it came last."
    return [f'<p class="soft">{words}</p>', *html.folded(change_cards(found), _CARDS_SHOWN, "more change")]


def change_cards(changes: Sequence[Tried]) -> list[str]:
    """Each change with its old text if it had one, its fate, the reason and its effect, all on one scale."""
    span = whisker_span([change.effect for change in changes if change.effect])
    shown = []
    for change in changes:
        words = text(shorten(change.text, _TEXT_LIMIT))
        if change.old:
            words += f'<br><span class="soft">in place of: {text(shorten(change.old, _TEXT_LIMIT))}</span>'
        where = ", ".join(filter(None, (f"update {change.update}", change.operation.module)))
        color = {"accepted": "up", "rejected": "down"}.get(change.fate, "")
        facts = f"<span>{text(where)}</span>"
        facts += f'<span><b class="{color}">{text(change.fate)}</b>, {text(change.why)}</span>'
        if change.effect:
            facts += f"{whisker(change.effect, span)}<span>{text(points(change.effect))}</span>"
        shown.append(_card(f"{change.operation.kind} {change.operation.id}".strip(), words, facts))
    return shown


def whisker_span(effects: Sequence[Effect]) -> float:
    """The half-width, in reward, of a scale that all of these fit on."""
    return max([_LEAST_SPAN, *(abs(end) for effect in effects for end in (*effect.interval, effect.mean))])


def whisker(effect: Effect, span: float) -> str:
    """An effect as a dot with its 95 % interval as a line, on a scale from -`span` to `span`; the tick is no effect."""
    width, pad = 150.0, 7.0
    low, high, mean = (
        pad + (min(span, max(-span, end)) + span) / (2 * span) * (width - 2 * pad)
        for end in (*effect.interval, effect.mean)
    )
    color = "c3" if effect.interval[0] > 0 else "bad" if effect.interval[1] < 0 else "c8"
    middle = width / 2
    body = (
        f'<line class="grid" x1="{pad}" x2="{width - pad}" y1="9" y2="9"/>'
        f'<line class="zero" x1="{middle}" x2="{middle}" y1="2" y2="16"/>'
        f'<line class="way {color}" x1="{low:.1f}" x2="{high:.1f}" y1="9" y2="9"/>'
        f'<circle class="dot {color}" cx="{mean:.1f}" cy="9" r="5"/>'
    )
    return svg(width, 18.0, f"effect {points(effect)} points", body)


# --- updates ----------------------------------------------------------------------------------------------------------


def updates(data: PracticeData) -> list[str]:
    """Every update with all that was proposed, tested and left out, newest first, each folded but for the newest."""
    shown = []
    for place, record in enumerate(reversed(data.updates)):
        made = f"reward {record.mean_reward:.3f}, {record.event.proposed} proposed, {fates_text(record.event.fates)}"
        after = f"{counted(record.lessons, 'lesson')} after it (version {record.version})"
        line = f"Update {record.step}, epoch {record.epoch}: {made}, {after}"
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
        body = "".join(f"<dt>{name}</dt><dd>{text(value)}</dd>" for name, value in facts)
        tests = gate_tests(record.tests, len(record.changes)) if record.tests else ""
        changes = "".join(change_cards(practice_data.decisions(data, record)))
        shown.append(html.details(line, f'<dl class="facts">{body}</dl>{tests}{changes}', opened=place == 0))
    return shown


def gate_tests(tests: Sequence[Test], changes: int) -> str:
    """The tests of an update's `changes` changes."""
    rows = [
        f"<tr>{cell(practice_data.changes_of(test, changes), '')}{cell(f'{test.pairs:,}')}{cell(f'{test.left_out:,}')}"
        f"{html.shift(gain(test.mean))}{cell(gains(test.interval))}{cell(practice_data.evidence(test))}"
        f'<td class="{"up" if test.verdict == "better" else ""}">{text(test.verdict)}</td></tr>'
        for test in tests
    ]
    head = [*heads("Changes", "Pairs", "Left out", "Points", "95% interval", "Evidence"), *heads("Verdict")]
    caption = (
        "Tests against the library before, on fresh validation rollouts. Evidence: natural log, of what was needed."
    )
    return html.table(caption, head, rows)
