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
    problems,
    stopped,
    tool_call_text,
    turn_parts,
)

_TEXT_LIMIT = 2000


def sample_runs(samples: Sequence[tuple[str, Trajectory]], template: Template | None = None) -> str:
    """Each sampled task with its labelled runs ("before", "after") in the order given.

    The parts of an interleaved policy's stream are told apart by `template`.
    """
    if not samples:
        return '<p class="empty">No runs were kept for display.</p>'
    by_task: dict[str, list[tuple[str, Trajectory]]] = {}
    for label, trajectory in samples:
        by_task.setdefault(trajectory.task_id, []).append((label, trajectory))
    streams = any(is_stream(one) for _, one in samples)
    parts = [f'<p class="soft">{LEGEND}</p>'] if streams else []
    for runs in by_task.values():
        first = runs[0][1]
        gold = next((one.gold for _, one in runs if one.gold is not None), None)
        family = f'<span class="soft"> ({text(first.family)})</span>' if first.family else ""
        parts.append(f"<h3>{text(first.question or first.task_id)}{family}</h3>")
        if gold is not None:
            parts.append(f"<p>Correct answer: <b>{text(gold)}</b></p>")
        parts.append(f'<div class="pair">{"".join(_run(label, one, template) for label, one in runs)}</div>')
    return "\n".join(parts)


def _run(label: str, trajectory: Trajectory, template: Template | None) -> str:
    stream = is_stream(trajectory)
    turns = "".join(_stream_turn(turn, template) if stream else _turn(turn) for turn in trajectory.turns)
    last = closing_parts(trajectory, template)
    turns += f"<li><p><b>Last reply</b></p><dl>{''.join(map(_part, last))}</dl></li>" if last else ""
    body = f"<ol>{turns}</ol>" if turns else '<p class="empty">No turn was taken.</p>'
    lost = ""
    if trajectory.error is not None:
        lost = f'<pre class="failed">{text(f"{trajectory.error.type}: {trajectory.error.message}")}</pre>'
    end = _end(trajectory, template)
    kind = "run stream" if stream else "run"
    return f'<article class="{kind}"><h4>{text(label)} {_mark(trajectory)}</h4>{body}{lost}{end}</article>'


def _mark(trajectory: Trajectory) -> str:
    if trajectory.status == "error":
        return '<span class="mark bad">lost to an error</span>'
    if trajectory.reward is None:
        return '<span class="mark soft">not judged</span>'
    value = trajectory.reward.value
    words, kind = ("solved", "up") if value >= 1 else ("not solved", "bad") if value <= 0 else ("partly solved", "c5")
    return f'<span class="mark {kind}">{words}, reward {number(value)}</span>'


def _turn(turn: Turn) -> str:
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
        failed = observation.status == "error"
        rows += [
            _row("Call", _block(tool_call_text(one), "failed" * (one.status == "error")))
            for one in observation.tool_calls
        ]
        rows.append(_row("Error" if failed else "Result", _block(observation.text, "failed" * failed)))
    if verdict is not None:
        judged = f"{verdict.signal}, {'result valid' if verdict.result_valid else 'result not valid'}"
        rows.append(_row("Verdict", text(f"{judged}: {verdict.analysis}" if verdict.analysis else judged)))
    rows += _problems(turn.calls)
    if turn.error is not None:
        head += ' · <span class="down">broken</span>'
        rows.append(_row("Broken", _block(broken(turn.error), "failed")))
    return f"<li><p><b>Turn {turn.index}</b>{head}</p><dl>{''.join(rows)}</dl></li>"


def _stream_turn(turn: Turn, template: Template | None) -> str:
    rows = [*map(_part, turn_parts(turn, template)), *_problems(turn.calls)]
    failed = turn.action is not None and call_part(turn.action, turn.command).failed
    head = ' · <span class="down">malformed call</span>' if failed else ""
    if turn.error is not None:
        head += ' · <span class="down">broken</span>'
        rows.append(_row("Broken", _block(broken(turn.error), "failed")))
    return f"<li><p><b>Turn {turn.index}</b>{head}</p><dl>{''.join(rows)}</dl></li>"


def _part(part: Part) -> str:
    """A part of a stream; what the environment put in stands on a ground of its own."""
    kind = "failed" if part.failed else "" if part.sampled else "put-in"
    block = _block(part.text, kind) if kind or part.label == "call" else text(part.text) or "(empty)"
    wrong = _row("Malformed", f'<span class="down">{text(part.wrong)}</span>') if part.wrong else ""
    return _row(text(part.marked), block) + wrong


def _end(trajectory: Trajectory, template: Template | None) -> str:
    answer = '<span class="soft">none</span>' if trajectory.answer is None else f"<b>{text(trajectory.answer)}</b>"
    rows = [_row("Answer", answer)]
    outcome = outcome_words(trajectory.outcome)
    rows += [_row("Outcome", "<br>".join(map(text, outcome)))] if outcome else []
    if trajectory.reward is not None and trajectory.reward.parts:
        parts = ", ".join(
            f"{name.replace('_', ' ')} {number(value)}" for name, value in trajectory.reward.parts.items()
        )
        rows.append(_row("Reward", text(parts)))
    if is_stream(trajectory) and template is not None:
        rows.append(_row("Format", text(format_words(trajectory, template))))
    rows.append(_row("Stopped", text(stopped(trajectory))))
    rows += _problems(trajectory.closing_calls)
    rows += [
        _row(f"Run {number}", text(f"failed: {broken(error)}"))
        for number, error in enumerate(trajectory.earlier_errors, 1)
    ]
    trouble = troubles(trajectory.request_failures, trajectory.replies_repaired)
    rows += [_row("Requests", text(trouble))] if trouble else []
    return f'<dl class="end">{"".join(rows)}</dl>'


def _problems(calls: Sequence[Call]) -> list[str]:
    return [_row(label.capitalize(), text(said)) for call in calls for label, said in problems(call)]


def _row(name: str, html: str) -> str:
    return f"<dt>{name}</dt><dd>{html}</dd>"


def _block(content: str, kind: str = "") -> str:
    shown = text(shorten(content, _TEXT_LIMIT)) or "(empty)"
    return f'<pre class="{kind}">{shown}</pre>' if kind else f"<pre>{shown}</pre>"
