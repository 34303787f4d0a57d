"""Trajectories as HTML, turn by turn; runs of the same task stand side by side."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.core.stream_template import Template
from midstream.core.trajectory import Trajectory
from midstream.report.numbers import number
from midstream.report.page import text
from midstream.report.turn_rows import (
    LEGEND,
    Row,
    call_part,
    closing_parts,
    end_rows,
    is_stream,
    outcome_words,
    part_rows,
    part_words,
    trouble_rows,
    turn_rows,
)

# Rows of code, results and calls keep their line breaks; a red or magenta row has a background of its own.
_BLOCKS = ("command", "code", "call", "▸ call", "observation", "sampled")
_KINDS = {"red": "failed", "bold red": "failed", "magenta": "put-in"}


def sample_runs(samples: Sequence[tuple[str, Trajectory]], template: Template | None = None) -> str:
    """Each sampled task with its labelled runs ("before", "after") in the order given.

    `template` separates the parts of an interleaved policy's stream.
    """
    if not samples:
        return '<p class="empty">No runs were kept for display.</p>'
    by_task: dict[str, list[tuple[str, Trajectory]]] = {}
    for label, trajectory in samples:
        by_task.setdefault(trajectory.task_id, []).append((label, trajectory))
    streams = any(is_stream(trajectory) for _, trajectory in samples)
    parts = [f'<p class="soft">{LEGEND}</p>'] if streams else []
    for runs in by_task.values():
        first = runs[0][1]
        gold = next((trajectory.gold for _, trajectory in runs if trajectory.gold is not None), None)
        family = f'<span class="soft"> ({text(first.family)})</span>' if first.family else ""
        parts.append(f"<h3>{text(first.question or first.task_id)}{family}</h3>")
        if gold is not None:
            parts.append(f"<p>Correct answer: <b>{text(gold)}</b></p>")
        parts.append(
            f'<div class="pair">{"".join(_run(label, trajectory, template) for label, trajectory in runs)}</div>'
        )
    return "\n".join(parts)


def _run(label: str, trajectory: Trajectory, template: Template | None) -> str:
    stream = is_stream(trajectory)
    turns = []
    for turn in trajectory.turns:
        head, action = "", turn.action
        if action is not None and (call_part(action, turn.command).failed if stream else action.error):
            head = f' · <span class="down">malformed {"call" if stream else "action"}</span>'
        elif action is not None and not stream:
            head = f" · {text(action.tool)}"
        if turn.error is not None:
            head += ' · <span class="down">broken</span>'
        rows = map(_row, turn_rows(turn, template, stream=stream))
        turns.append(f"<li><p><b>Turn {turn.index}</b>{head}</p><dl>{''.join(rows)}</dl></li>")
    if last := [row for part in closing_parts(trajectory, template) for row in part_rows(part)]:
        turns.append(f"<li><p><b>Last reply</b></p><dl>{''.join(map(_row, last))}</dl></li>")
    body = f"<ol>{''.join(turns)}</ol>" if turns else '<p class="empty">No turn was taken.</p>'
    lost = ""
    if trajectory.error is not None:
        lost = f'<pre class="failed">{text(f"{trajectory.error.type}: {trajectory.error.message}")}</pre>'
    reward = trajectory.reward
    if trajectory.status == "error":
        mark, kind = "lost to an error", "bad"
    elif reward is None:
        mark, kind = "not judged", "soft"
    else:
        solved = ("solved", "up") if reward.value >= 1 else ("not solved", "bad") if reward.value <= 0 else None
        mark, kind = solved or ("partly solved", "c5")
        mark = f"{mark}, reward {number(reward.value)}"
    answer = '<span class="soft">none</span>' if trajectory.answer is None else f"<b>{text(trajectory.answer)}</b>"
    end = [f"<dt>Answer</dt><dd>{answer}</dd>"]
    if outcome := outcome_words(trajectory.outcome):
        end.append(f"<dt>Outcome</dt><dd>{'<br>'.join(map(text, outcome))}</dd>")
    if reward is not None and reward.parts:
        end.append(f"<dt>Reward</dt><dd>{text(part_words(reward.parts))}</dd>")
    end += map(_row, end_rows(trajectory, template))
    end += [_row(row) for call in trajectory.closing_calls for row in trouble_rows(call)]
    return (
        f'<article class="{"run stream" if stream else "run"}"><h4>{text(label)} '
        f'<span class="mark {kind}">{mark}</span></h4>{body}{lost}<dl class="end">{"".join(end)}</dl></article>'
    )


def _row(row: Row) -> str:
    """A row of the terminal as HTML."""
    label, content = row
    kind, shown = _KINDS.get(str(content.style), ""), text(content.plain)
    if kind or label in _BLOCKS:
        shown = f'<pre class="{kind}">{shown}</pre>' if kind else f"<pre>{shown}</pre>"
    return f"<dt>{label.strip().capitalize()}</dt><dd>{shown}</dd>"
