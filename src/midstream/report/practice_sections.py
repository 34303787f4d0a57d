"""A practice run's report as HTML: what the test sets say, the curves of its updates, and where its cost went."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.core.metrics import Spent
from midstream.evaluation.pairs import Paired
from midstream.practice.commit import UpdateRecord, fates, left_out
from midstream.practice.library import Effect
from midstream.report import sections
from midstream.report.charts import Series, line_chart
from midstream.report.numbers import Point, buckets, change, dollars, number, percent
from midstream.report.practice_charts import fate_bars, whisker, whisker_span
from midstream.report.practice_data import PracticeData, summed, verdict
from midstream.report.sections import cell, charts, figure, heads, shift, table, text

_POINTS = 400


def results(data: PracticeData) -> list[str]:
    """The paired comparison of every test set, then sets of several families by family, and all evaluations."""
    notes = [f'<p class="soft">{text(note)}</p>' for note in data.notes]
    several = any(len(one.by_family) > 1 for one in data.evaluations)
    rest = sections.results(data.evaluations) if several else [sections.all_evaluations(data.evaluations)]
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
        f'<tr><th scope="row">{text(phase or "-")}</th>{cell(role or "-", "")}{_spent(spent)}</tr>'
        for (phase, role), spent in data.costs.items()
    ]
    rows.append(f'<tr class="total"><th scope="row">In all</th><td></td>{_spent(data.spent)}</tr>')
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


def _spent(spent: Spent) -> str:
    counts = [f"{count:,}" if count else "-" for count in (spent.rollouts, spent.calls, spent.tokens)]
    return "".join(map(cell, (*counts, dollars(spent.cost_usd) if spent.cost_usd else "-")))
