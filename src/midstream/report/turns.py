"""Trajectories as HTML, turn by turn; runs of the same task stand side by side."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.core.stream_template import Template
from midstream.core.trajectory import Call, Trajectory, Turn
from midstream.report.numbers import number, shorten, troubles
from midstream.report.page import text
from midstream.report.turn_rows import (
    LEGEND,
    Part,
    broken,
    call_part,
    closing_parts,
    command_text,
    format_words,
    is_stream,
    outcome_words,
    part_words,
    problems,
    stopped,
    tool_call_text,
    turn_parts,
)

_TEXT_LIMIT = 2000


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
        head, rows = _stream_turn(turn, template) if stream else _turn(turn)
        rows += _problems(turn.calls)
        if turn.error is not None:
            head += ' · <span class="down">broken</span>'
            rows.append(_row("Broken", _block(broken(turn.error), "failed")))
        turns.append(f"<li><p><b>Turn {turn.index}</b>{head}</p><dl>{''.join(rows)}</dl></li>")
    if last := closing_parts(trajectory, template):
        turns.append(f"<li><p><b>Last reply</b></p><dl>{''.join(map(_part, last))}</dl></li>")
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
    return (
        f'<article class="{"run stream" if stream else "run"}"><h4>{text(label)} '
        f'<span class="mark {kind}">{mark}</span></h4>{body}{lost}{result_rows(trajectory, template)}</article>'
    )


def _turn(turn: Turn) -> tuple[str, list[str]]:
    """What follows a turn's number, and its rows."""
    action, command, observation, verdict = turn.action, turn.command, turn.observation, turn.verdict
    head, rows = "", []
    if action is not None and action.error is not None:
        head = ' · <span class="down">malformed action</span>'
        sampled = next((call.completion for call in turn.calls if call.role == "planner" and call.completion), "")
        rows += [_row("Problem", text(action.error))] + ([_row("Sampled", _block(sampled))] if sampled else [])
    elif action is not None:
        head = f" · {text(action.tool)}"
        rows.append(_row("Sub-goal", text(action.sub_goal)))
        rows += [_row("Context", text(action.context))] if action.context else []
    if command is not None:
        rows.append(_row("Command", _block(command_text(command), "failed" * (command.error is not None))))
    if observation is not None:
        for call in observation.tool_calls:
            rows.append(_row("Call", _block(tool_call_text(call), "failed" * (call.status == "error"))))
        failed = observation.status == "error"
        rows.append(_row("Error" if failed else "Result", _block(observation.text, "failed" * failed)))
    if verdict is not None:
        judged = f"{verdict.signal}, {'result valid' if verdict.result_valid else 'result not valid'}"
        rows.append(_row("Verdict", text(f"{judged}: {verdict.analysis}" if verdict.analysis else judged)))
    return head, rows


def _stream_turn(turn: Turn, template: Template | None) -> tuple[str, list[str]]:
    failed = turn.action is not None and call_part(turn.action, turn.command).failed
    head = ' · <span class="down">malformed call</span>' if failed else ""
    return head, [*map(_part, turn_parts(turn, template))]


def _part(part: Part) -> str:
    """A part of a stream; what the environment put in has a background of its own."""
    kind = "failed" if part.failed else "" if part.sampled else "put-in"
    block = _block(part.text, kind) if kind or part.label == "call" else text(part.text) or "(empty)"
    wrong = _row("Malformed", f'<span class="down">{text(part.wrong)}</span>') if part.wrong else ""
    return _row(text(part.marked), block) + wrong


def result_rows(trajectory: Trajectory, template: Template | None) -> str:
    """The result of a run: answer, outcome, reward, why it stopped, what failed around it."""
    answer = '<span class="soft">none</span>' if trajectory.answer is None else f"<b>{text(trajectory.answer)}</b>"
    rows = [_row("Answer", answer)]
    if outcome := outcome_words(trajectory.outcome):
        rows.append(_row("Outcome", "<br>".join(map(text, outcome))))
    if trajectory.reward is not None and trajectory.reward.parts:
        rows.append(_row("Reward", text(part_words(trajectory.reward.parts))))
    if is_stream(trajectory) and template is not None:
        rows.append(_row("Format", text(format_words(trajectory, template))))
    rows.append(_row("Stopped", text(stopped(trajectory))))
    rows += _problems(trajectory.closing_calls)
    for attempt, error in enumerate(trajectory.earlier_errors, 1):
        rows.append(_row(f"Run {attempt}", text(f"failed: {broken(error)}")))
    if trouble := troubles(trajectory.request_failures, trajectory.replies_repaired):
        rows.append(_row("Requests", text(trouble)))
    return f'<dl class="end">{"".join(rows)}</dl>'


def _problems(calls: Sequence[Call]) -> list[str]:
    return [_row(label.capitalize(), text(words)) for call in calls for label, words in problems(call)]


def _row(name: str, html: str) -> str:
    return f"<dt>{name}</dt><dd>{html}</dd>"


def _block(content: str, kind: str = "") -> str:
    shown = text(shorten(content, _TEXT_LIMIT)) or "(empty)"
    return f'<pre class="{kind}">{shown}</pre>' if kind else f"<pre>{shown}</pre>"
