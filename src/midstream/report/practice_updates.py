"""A practice run's report as HTML: each update with all that was proposed, tested and left out."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.practice.commit import UpdateRecord, fates, proposed
from midstream.practice.gate import Test
from midstream.report.numbers import change, counted, percent, shorten
from midstream.report.practice_charts import whisker_span
from midstream.report.practice_data import (
    PracticeData,
    Tried,
    changes_of,
    evidence,
    fates_text,
    said,
    spent_text,
)
from midstream.report.practice_lessons import change_card
from midstream.report.sections import cell, heads, shift, table, text


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
