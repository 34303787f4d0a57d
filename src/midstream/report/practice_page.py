"""The report of a practice run as one HTML file: results, lessons, curves, updates, cost."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from midstream.core.metrics import Spent
from midstream.core.trajectory import Trajectory
from midstream.evaluation.pairs import Paired
from midstream.practice.commit import UpdateRecord, fates, left_out, proposed
from midstream.practice.gate import Test
from midstream.practice.library import Effect, Lesson
from midstream.report.charts import Frame, Series, axes, end_labels, line_chart, svg
from midstream.report.numbers import Point, buckets, change, counted, cut, dollars, number, percent, shorten
from midstream.report.page import (
    Card,
    Part,
    arrow,
    cell,
    charts,
    figure,
    heads,
    how,
    limits,
    next_steps,
    page,
    save_page,
    shift,
    table,
    text,
)
from midstream.report.practice_data import (
    PracticeData,
    Tried,
    about,
    by_effect,
    changes_of,
    evidence,
    fates_text,
    learned,
    left_out_text,
    points,
    proven,
    said,
    short,
    spent_text,
    summed,
    total_fates,
    tried,
    verdict,
)
from midstream.report.training_page import all_evaluations
from midstream.report.training_page import results as evaluation_results
from midstream.report.turns import sample_runs


def write_practice_report(path: Path, data: PracticeData) -> None:
    """Write the report of `data` to `path` as one HTML file. Raises `StorageError`."""
    save_page(path, render_practice(data))


def render_practice(data: PracticeData) -> str:
    """The report as HTML text."""
    parts: list[Part] = [
        ("results", "Results", results(data)),
        ("lessons", "The lessons", lessons(data)),
        ("curves", "Update by update", curves(data.updates)),
        ("tried", "Tried and not accepted", not_accepted(data)),
        ("updates", "What each update did", updates(data)),
        ("cost", "Cost", costs(data)),
        ("counts", "What was counted and left out", [counts(data)]),
        ("runs", "One question, turn by turn", [sample_runs(data.samples, data.template)] if data.samples else []),
        ("how", "How it was run", how(data.run_info, data.recipe_toml)),
        ("limits", "Limits", [limits(data.limits)]),
        ("next", "What to try next", [next_steps(data.next_steps)]),
    ]
    return page(data.title, summary(data), _cards(data), parts)


def summary(data: PracticeData) -> str:
    """What happened, in plain words with the run's numbers: what lessons did, what was accepted, what was lost."""
    found = total_fates([fates(record) for record in data.updates])
    library = data.library
    sentences = ["No update of the library has finished yet."]
    if data.updates:
        count = len(data.updates)
        of = "" if count == data.updates_planned else f"{count} of "
        made = f"The run made {of}{counted(data.updates_planned, 'update')} of its library and never changed the model"
        sentences = [f"{made}. Of the changes that were proposed: {fates_text(found)}."]
    if data.updates and not data.gated:
        sentences.append("There was no gate: every sound change was accepted without a test.")
    sentences += [_verdict(one) for one in data.compared[:1]]
    if not data.compared:
        sentences.append("No held-out set was evaluated with and without lessons, so whether they help is not known.")
    if library.rendered and not library.proven_for:
        sentences.append("The library as it is was accepted by no test: it is unproven.")
    lost = left_out_text(data.updates)
    return " ".join(sentences + ([f"Left out: {lost}."] if lost else []))


def _verdict(one: Paired) -> str:
    low, high = (change(0.0, end) for end in one.interval)
    sides = f"{percent(one.other_success)} of {counted(one.tasks, 'held-out task')} ({one.set_name}, {one.sampling})"
    said = f"With the lessons the agent solves {sides}, without them {percent(one.first_success)}"
    if one.verdict == "the same":
        return f"{said}: every turn was the same."
    sure = "" if one.verdict in ("better", "worse") else ", which is no evidence of a difference"
    return f"{said}: {change(0.0, one.difference)} points, 95% interval {low} to {high}{sure}."


def _cards(data: PracticeData) -> list[Card]:
    cards: list[Card] = []
    for one in data.compared[:2]:
        low, high = (change(0.0, end) for end in one.interval)
        named = f"{one.set_name}, {one.sampling}"
        value = arrow(percent(one.first_success), percent(one.other_success))
        cards.append((f"Success, {named}", value, f"{one.tasks:,} held-out tasks"))
        cards.append(
            ("Difference", text(change(0.0, one.difference).replace("-", "−")), f"points, 95%: {low} to {high}")
        )
    library = data.library
    pinned, vetoed = (sum(one.state == state for one in library.lessons) for state in ("pinned", "vetoed"))
    notes = [f"{count} {name}" for count, name in ((pinned, "pinned"), (vetoed, "vetoed")) if count]
    state = "proven by a test" if library.proven_for else "unproven"
    cards.append(("Lessons", f"{len(library.rendered):,}", ", ".join([state, *notes] if library.rendered else notes)))
    spent = data.spent
    cost = dollars(spent.cost_usd) if spent.cost_usd else f"{short(spent.tokens)}"
    note = counted(spent.rollouts, "rollout") + (f", {short(spent.tokens)} tokens" if spent.cost_usd else "")
    cards.append(("Cost" if spent.cost_usd else "Tokens", text(cost), note))
    return cards


_POINTS = 400


def results(data: PracticeData) -> list[str]:
    """The paired comparison of every test set, then sets of several families by family, and all evaluations."""
    notes = [f'<p class="soft">{text(note)}</p>' for note in data.notes]
    several = any(len(one.by_family) > 1 for one in data.evaluations)
    rest = evaluation_results(data.evaluations) if several else [all_evaluations(data.evaluations)]
    return [paired(data.compared), *notes, *rest]


def paired(compared: Sequence[Paired]) -> str:
    """Each set without and with lessons, task by task, with the interval of the difference."""
    if not compared:
        return ""
    effects = [Effect(mean=one.difference, interval=one.interval, pairs=one.tasks) for one in compared]
    span = whisker_span(effects)
    rows = []
    for one, effect in zip(compared, effects, strict=True):
        low, high = one.interval
        between = f"{change(0.0, low)} to {change(0.0, high)}"
        sure = one.verdict in ("better", "worse")
        gain = change(0.0, one.difference)
        rows.append(
            f'<tr><th scope="row">{text(f"{one.set_name}, {one.sampling}")}</th>{cell(f"{one.tasks:,}")}'
            f"{cell(percent(one.first_success))}{cell(percent(one.other_success))}{shift(gain) if sure else cell(gain)}"
            f'<td class="whisker">{whisker(effect, span)}</td>{cell(between)}'
            f"{cell(f'{one.wins} / {one.losses} / {one.ties}')}{cell(f'{one.left_out:,}')}</tr>"
        )
    head = [
        *heads("Set", "Tasks", "No lessons", "With lessons", "Points"),
        *heads("", "95% interval", "Won / lost / tied", "Left out", left=1),
    ]
    caption = "The same held-out tasks without and with lessons, paired. Left out: no result on one side."
    said = "".join(f"<p>{text(verdict(one))}.</p>" for one in compared)
    return table(caption, head, rows) + said


def curves(updates: Sequence[UpdateRecord]) -> list[str]:
    """Reward, the fate of the changes, lessons, groups and effort by update."""
    if not updates:
        return ['<p class="empty">No update has finished yet.</p>']
    reward = _line([(one.step, one.mean_reward) for one in updates], "Mean reward of the learning rollouts", (0.0, 1.0))
    bars = fate_bars([(one.step, fates(one)) for one in updates])
    useful = [(one.step, 1 - (one.uniform + len(one.broken)) / one.groups) for one in updates if one.groups]
    small = [
        _small("Lessons", "in the library", [(one.step, one.lessons) for one in updates], "c4"),
        _small("Groups with contrast", "share of the batch", useful, "c6", as_percent=True),
        _small("Turns a rollout", "mean of learning rollouts", [(one.step, one.turns_mean) for one in updates], "c3"),
        _small(
            "Tool errors",
            "share of turns",
            [(one.step, one.tool_use.error_rate) for one in updates],
            "bad",
            as_percent=True,
        ),
    ]
    note = "of the learning rollouts, not held out"
    return [
        charts(figure("Learning reward", note, reward), figure("Changes", "what became of what was proposed", bars)),
        charts(*small, size="small"),
    ]


def _line(points: Sequence[Point], name: str, y_range: tuple[float, float]) -> str:
    kept = buckets(points, _POINTS)
    line = Series(name=name, points=tuple(kept), marks=len(kept) < 30, label=number(kept[-1][1]) if kept else "")
    summary = f"{name}: {number(kept[0][1])} at update {kept[0][0]:.0f}, {number(kept[-1][1])} at the last"
    return line_chart([line], summary=summary, y_range=y_range, as_percent=False, x_label="update")


def _small(title: str, note: str, points: Sequence[Point], colour: str, *, as_percent: bool = False) -> str:
    kept = buckets(points, _POINTS)
    last = (percent(kept[-1][1]) if as_percent else number(kept[-1][1])) if kept else ""
    line = Series(name=title, points=tuple(kept), colour=colour)
    chart = line_chart(
        [line], summary=f"{title}, by update: {last} at the last", as_percent=as_percent, width=240, height=140,
        x_label="update",
    )  # fmt: skip
    return figure(f"{title} {last}", note, chart)


def counts(data: PracticeData) -> str:
    """What went into learning and what did not, each with what became of it."""
    updates = data.updates
    lost = summed(left_out(record) for record in updates)
    rows: list[tuple[str, int, str]] = [
        ("Groups", sum(one.groups for one in updates), "all learning rollouts of one task in one update"),
        ("Groups without contrast", lost["uniform groups"], "equal rewards: nothing to compare"),
        (
            "Rollouts that failed",
            lost["failed rollouts"],
            "an endpoint, tool or sandbox failed: left out of their group, never a reward of 0",
        ),
        (
            "Groups that broke down",
            lost["broken groups"],
            "fewer than two results, a tie of answers or no usable reply: left out, each named with its update",
        ),
        (
            "Replies that stayed unreadable",
            lost["lost replies"],
            "of the reflector, asked for again until its tries were spent; named with their update",
        ),
        ("Pairs of the gate", sum(test.pairs for one in updates for test in one.tests), "with a result on both sides"),
        ("Pairs without a result", lost["lost pairs"], "left out of their test"),
        (
            "Pairs that told changes apart",
            sum(one.bisect_pairs for one in updates),
            "one random half of the changes against the other",
        ),
        (
            "Evaluation tasks without a result",
            sum(one.errors for one in data.evaluations),
            "counted as wrong in the tables, left out of pairs",
        ),
    ]
    body = [
        f'<tr><th scope="row">{text(name)}</th>{cell(f"{count:,}")}{cell(note, "wrap soft")}</tr>'
        for name, count, note in rows
    ]
    return table("Sums over all updates.", [*heads("What", "Count"), *heads("Meaning")], body)


def costs(data: PracticeData) -> list[str]:
    """What was used by phase and role where that was kept, against the limits."""
    head = heads("Phase", "Asked by", "Rollouts", "Requests", "Tokens", "Cost", left=2)
    rows = [
        f'<tr><th scope="row">{text(phase or "-")}</th>{cell(role or "-", "")}{_spent_cells(spent)}</tr>'
        for (phase, role), spent in data.costs.items()
    ]
    rows.append(f'<tr class="total"><th scope="row">In all</th><td></td>{_spent_cells(data.spent)}</tr>')
    limits = data.budget
    if any(one is not None for one in (limits.rollouts, limits.tokens, limits.cost_usd)):
        cells = [
            "-" if limits.rollouts is None else f"{limits.rollouts:,}",
            "-",
            "-" if limits.tokens is None else f"{limits.tokens:,}",
            "-" if limits.cost_usd is None else dollars(limits.cost_usd),
        ]
        rows.append(f'<tr><th scope="row">Limit</th><td></td>{"".join(map(cell, cells))}</tr>')
    if not data.updates and not data.costs:
        return []
    return [table("What the run has used up, evaluations and the gate's rollouts included.", head, rows)]


def _spent_cells(spent: Spent) -> str:
    counts = [f"{count:,}" if count else "-" for count in (spent.rollouts, spent.calls, spent.tokens)]
    return "".join(map(cell, (*counts, dollars(spent.cost_usd) if spent.cost_usd else "-")))


_SHOWN = 25
_TEXT_LIMIT = 600
_ROLLOUTS_SHOWN = 12


def lessons(data: PracticeData) -> list[str]:
    """Every lesson of the newest library as a card, those with the largest measured effect first."""
    library = data.library
    if not library.lessons:
        return ['<p class="empty">The library is empty.</p>']
    span = whisker_span([one.effect for one in library.lessons if one.effect])
    here = {one.id for one in learned(data.versions)}
    cards = [_card(data, one, span, here=one.id in here) for one in by_effect(library.lessons)]
    said = f"{counted(len(library.rendered), 'lesson')} in the prompts, {proven(library)}."
    if any(one.effect for one in library.lessons):
        said += (
            " The line is the 95% interval of what the lesson did to the mean reward, on a scale of "
            f"±{span * 100:.1f} points; the dot is its estimate, the tick no effect. "
            "Helped and harmed count pairs of rollouts."
        )
    more = cards[_SHOWN:]
    rest = f"<details><summary>{counted(len(more), 'more lesson')}</summary>{''.join(more)}</details>" if more else ""
    return [f'<p class="soft">{text(said)}</p>', "".join(cards[:_SHOWN]), rest]


def _card(data: PracticeData, one: Lesson, span: float, *, here: bool) -> str:
    effect = '<span class="soft">effect not measured</span>'
    if one.effect is not None:
        together = "" if one.effect.alone else ", measured only together with others"
        effect = f"{whisker(one.effect, span)}<span>{text(points(one.effect) + together)}</span>"
    numbers = f"in {counted(one.used, 'rollout')}"
    numbers += f", helped {one.helped:,}, harmed {one.harmed:,}" if one.helped or one.harmed else ""
    struck = ' class="vetoed"' if one.state == "vetoed" else ""
    return (
        f'<article class="lesson"><p class="lesson-text"><b>{text(one.id)}</b> '
        f"<span{struck}>{text(shorten(one.text, _TEXT_LIMIT))}</span></p>"
        f'<p class="lesson-facts"><span>{text(about(one))}</span>{effect}<span>{text(numbers)}</span></p>'
        f"{_origin(data, one, here=here)}</article>"
    )


def _origin(data: PracticeData, one: Lesson, *, here: bool) -> str:
    """Where a lesson's text came from: why, the question of each task, and its rollouts with how they ended."""
    origin = one.origin
    if not (origin.tasks or origin.trajectories or origin.why):
        return ""
    found = [data.sources.get((origin.update, name)) for name in origin.trajectories] if here else []
    ended = [each for each in found if each is not None]
    parts = [f"<p>{text(shorten(origin.why, _TEXT_LIMIT))}</p>" if origin.why else ""]
    parts += [f'<p class="soft">Written by {text(origin.model)}.</p>' if origin.model else ""]
    if not ended:
        named = shorten(", ".join(origin.trajectories or origin.tasks), 400)
        parts.append(f'<p class="soft">{"Its rollouts" if here else "Rollouts of another run"}: {text(named)}</p>')
    for task in dict.fromkeys(each.task_id for each in ended):
        parts.append(_task(data, origin.update, [each for each in ended if each.task_id == task]))
    size = f"{counted(len(origin.tasks), 'task')}, {counted(len(origin.trajectories), 'rollout')}"
    return f"<details><summary>Where it comes from: {size}</summary>{''.join(parts)}</details>"


def _task(data: PracticeData, update: int, rollouts: Sequence[Trajectory]) -> str:
    first = rollouts[0]
    gold = "" if first.gold is None else f" Correct answer: <b>{text(shorten(first.gold, 200))}</b>"
    rows = []
    for one in rollouts[:_ROLLOUTS_SHOWN]:
        reward = "-" if one.reward is None or one.status != "ok" else number(one.reward.value)
        used = (turn.action.tool if turn.action and not turn.action.error else "malformed" for turn in one.turns)
        rows.append(
            f"<tr>{cell(one.id, '')}{cell(reward)}{cell(shorten(one.answer or '(none)', 120), 'wrap')}"
            f"{cell(cut(' → '.join(used) or '-', 80), 'wrap soft')}</tr>"
        )
    more = len(rollouts) - _ROLLOUTS_SHOWN
    caption = f"{counted(len(rollouts), 'rollout')} of task {first.task_id}"
    caption += f", {more:,} not shown" if more > 0 else ""
    command = f"midstream show {data.run} {shlex.quote(f'step-{update:06d}/{first.id}')}"
    head = [*heads("Rollout", "Reward", left=1), *heads("Answer", "Tools, turn by turn", left=2)]
    return (
        f"<p>{text(shorten(first.question or first.task_id, _TEXT_LIMIT))}{gold}</p>"
        f"{table(caption, head, rows)}<pre>{text(command)}</pre>"
    )


def not_accepted(data: PracticeData) -> list[str]:
    """Every change that was asked for and is not in the library, with the reason; the newest first."""
    found = tried(data)[::-1]
    if not found:
        return []
    span = whisker_span([one.effect for one in found if one.effect])
    cards = [change_card(one, span) for one in found]
    more = cards[_SHOWN:]
    rest = f"<details><summary>{counted(len(more), 'more change')}</summary>{''.join(more)}</details>" if more else ""
    said = f"{counted(len(found), 'change')}, the newest first; one that was asked for again stands where it came last."
    return [f'<p class="soft">{said}</p>', "".join(cards[:_SHOWN]), rest]


def change_card(one: Tried, span: float) -> str:
    """A change: what was asked for, by the old text too where there was one; what became of it, why, and its effect."""
    asked = f"{one.operation.kind} {one.operation.id}".strip()
    old = f'<br><span class="soft">in place of: {text(shorten(one.old, _TEXT_LIMIT))}</span>' if one.old else ""
    where = ", ".join(filter(None, (f"update {one.update}", one.operation.module)))
    colour = {"accepted": "up", "rejected": "down"}.get(one.fate, "")
    effect = f"{whisker(one.effect, span)}<span>{text(points(one.effect))}</span>" if one.effect else ""
    return (
        f'<article class="lesson"><p class="lesson-text"><b>{text(asked)}</b> '
        f"{text(shorten(one.text, _TEXT_LIMIT))}{old}</p>"
        f'<p class="lesson-facts"><span>{text(where)}</span>'
        f'<span><b class="{colour}">{text(one.fate)}</b>, {text(one.why)}</span>{effect}</p></article>'
    )


def updates(data: PracticeData) -> list[str]:
    """Every update, newest first, each folded but for the newest."""
    shown = []
    for place, record in enumerate(reversed(data.updates)):
        made = f"reward {record.mean_reward:.3f}, {proposed(record)} proposed, {fates_text(fates(record))}"
        after = f"{counted(record.lessons, 'lesson')} after it (version {record.version})"
        line = f"Update {record.step}, epoch {record.epoch}: {made}, {after}"
        opened = "" if place else " open"
        shown.append(f"<details{opened}><summary>{text(line)}</summary>{''.join(_update(data, record))}</details>")
    return shown


def _update(data: PracticeData, record: UpdateRecord) -> list[str]:
    parts = [
        f'<dl class="facts">{"".join(f"<dt>{name}</dt><dd>{text(value)}</dd>" for name, value in _facts(record))}</dl>'
    ]
    if record.tests:
        parts.append(_tests(record.tests, len(record.changes)))
    changes = list(said(data, record))
    if changes:
        parts.append(_changes(changes))
    return parts


def _facts(record: UpdateRecord) -> list[tuple[str, str]]:
    groups = f"{record.groups:,}, of them {record.uniform:,} without contrast and {len(record.broken):,} broken"
    kept = sum(one.operation.kind == "keep" for one in record.proposed)
    facts = [
        ("Groups", groups),
        ("Effort", f"{record.turns_mean:.2f} turns a rollout, {percent(record.tool_use.error_rate)} of turns in error"),
        ("Spent so far", spent_text(record.spent)),
    ]
    facts += [("Told to keep", counted(kept, "lesson"))] if kept else []
    facts += (
        [("Told apart", f"on {counted(record.bisect_pairs, 'pair')} of random halves")] if record.bisect_pairs else []
    )
    facts += [("Failed", f"{one}: {shorten(why.partition(chr(10))[0], 200)}") for one, why in record.failed.items()]
    facts += [("Left out", f"{task}: {why}") for task, why in record.broken.items()]
    return facts + [("Unreadable", one) for one in record.unreadable]


def _tests(tests: Sequence[Test], count: int) -> str:
    rows = []
    for one in tests:
        low, high = one.interval
        kind = "up" if one.verdict == "better" else ""
        rows.append(
            f"<tr>{cell(changes_of(one, count), '')}{cell(f'{one.pairs:,}')}{cell(f'{one.left_out:,}')}"
            f"{shift(change(0.0, one.mean))}{cell(f'{change(0.0, low)} to {change(0.0, high)}')}"
            f'{cell(evidence(one))}<td class="{kind}">{text(one.verdict)}</td></tr>'
        )
    head = [*heads("Changes", "Pairs", "Left out", "Points", "95% interval", "Evidence"), *heads("Verdict")]
    caption = (
        "Tests against the library before, on fresh validation rollouts. Evidence: natural log, and what was needed."
    )
    return table(caption, head, rows)


def _changes(changes: Sequence[Tried]) -> str:
    span = whisker_span([one.effect for one in changes if one.effect])
    return "".join(change_card(one, span) for one in changes)


FATE_COLOURS = {"accepted": "c3", "pending": "c5", "rejected": "bad", "refused": "c8"}
_WIDTH, _HEIGHT, _RIGHT = 400.0, 230.0, 74.0
_LEAST_SPAN = 0.01  # one point: below it a whisker chart would only magnify noise


def fate_bars(updates: Sequence[tuple[int, Mapping[str, int]]]) -> str:
    """One stacked bar an update: how many changes were accepted, left pending, rejected, refused."""
    most = max((sum(found.values()) for _, found in updates), default=0)
    if not most:
        return '<p class="empty">No change was proposed.</p>'
    first, last = updates[0][0], updates[-1][0]
    frame = Frame(
        width=_WIDTH,
        height=_HEIGHT,
        x_range=(first - 0.6, last + 0.6),
        y_range=(0.0, most * 1.05),
        right=_RIGHT,
        left=28.0,
        as_percent=False,
    )
    slot = (frame.x(last) - frame.x(first)) / max(1, last - first) if last > first else frame.width - frame.right
    width = min(34.0, slot * 0.7)
    bars = [bar for step, found in updates for bar in _bar(frame, step, found, width)]
    return svg(
        _WIDTH, _HEIGHT, _bars_in_words(updates), axes(frame, "update") + "".join(bars) + _legend(frame, updates)
    )


def _bar(frame: Frame, step: int, found: Mapping[str, int], width: float) -> list[str]:
    floor, parts = 0, []
    title = f"update {step}: " + ", ".join(f"{found.get(fate, 0)} {fate}" for fate in FATE_COLOURS)
    for fate, colour in FATE_COLOURS.items():
        count = found.get(fate, 0)
        if count:
            top, bottom = frame.y(floor + count), frame.y(floor)
            place = f'x="{frame.x(step) - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}"'
            parts.append(f'<rect class="area {colour}" {place}><title>{title}</title></rect>')
            floor += count
    return parts


def _legend(frame: Frame, updates: Sequence[tuple[int, Mapping[str, int]]]) -> str:
    present = [fate for fate in FATE_COLOURS if any(found.get(fate) for _, found in updates)]
    # The bars' order from the bottom, so that the labels stand as the parts of a bar do.
    height = (frame.height - frame.top - frame.bottom) / 5
    return end_labels(
        frame,
        [(frame.y(0) - (place + 0.5) * height, fate, FATE_COLOURS[fate]) for place, fate in enumerate(present)],
    )


def _bars_in_words(updates: Sequence[tuple[int, Mapping[str, int]]]) -> str:
    total = {fate: sum(found.get(fate, 0) for _, found in updates) for fate in FATE_COLOURS}
    return "What became of the changes of all updates: " + ", ".join(f"{n} {fate}" for fate, n in total.items())


def whisker_span(effects: Sequence[Effect]) -> float:
    """The half-width, in reward, of a scale that all of these fit on."""
    return max([_LEAST_SPAN, *(abs(end) for one in effects for end in (*one.interval, one.mean))])


def whisker(effect: Effect, span: float) -> str:
    """An effect as a dot with its 95 % interval as a line, on a scale from -`span` to `span`; the tick is no effect."""
    width, pad = 150.0, 7.0
    low, high, mean = (
        pad + (min(span, max(-span, end)) + span) / (2 * span) * (width - 2 * pad)
        for end in (*effect.interval, effect.mean)
    )
    colour = "c3" if effect.interval[0] > 0 else "bad" if effect.interval[1] < 0 else "c8"
    middle = width / 2
    body = (
        f'<line class="grid" x1="{pad}" x2="{width - pad}" y1="9" y2="9"/>'
        f'<line class="zero" x1="{middle}" x2="{middle}" y1="2" y2="16"/>'
        f'<line class="way {colour}" x1="{low:.1f}" x2="{high:.1f}" y1="9" y2="9"/>'
        f'<circle class="dot {colour}" cx="{mean:.1f}" cy="9" r="5"/>'
    )
    return svg(width, 18.0, f"effect {points(effect)} points", body)
