"""Every run of an evaluation in a few lines: how it was scored, its question, its answer beside the gold one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from midstream.core.trajectory import Trajectory
from midstream.report.numbers import counted, number, shorten, visible
from midstream.report.stream_parts import outcome_words
from midstream.report.turn_rows import broken, fields, plain, stopped

_TEXT_LIMIT = 300


def not_right(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """Those with a score below 1, or without one."""
    return [one for one in trajectories if one.reward is None or one.reward.value < 1]


def task_list(title: str, trajectories: Sequence[Trajectory]) -> Group:
    """One evaluation's runs in order; each id can be given to `midstream show`."""
    parts: list[RenderableType] = [Text(visible(f"{title}: {counted(len(trajectories), 'run')}"), "bold")]
    for one in trajectories:
        score = "-" if one.reward is None else number(one.reward.value)
        style = "green" if one.reward and one.reward.value >= 1 else "yellow" if one.error else "red"
        parts.append(Text(f"{score}  {visible(one.id)}", style))
        rows = fields()
        rows.add_row("question", plain(shorten(one.question, _TEXT_LIMIT)))
        if one.error:
            rows.add_row("error", plain(broken(one.error), "yellow"))
        if one.outcome:
            rows.add_row("outcome", plain("; ".join(outcome_words(one.outcome))))
        else:
            rows.add_row("answer", plain(shorten("(none)" if one.answer is None else one.answer, _TEXT_LIMIT)))
            rows.add_row("gold", plain(shorten("-" if one.gold is None else one.gold, _TEXT_LIMIT)))
        if one.answer is None and not one.error:
            rows.add_row("stopped", stopped(one))
        parts.append(Padding(rows, (0, 0, 0, 3)))
    return Group(*parts)


def task_records(evaluation: Mapping[str, Any], trajectories: Iterable[Trajectory]) -> list[dict[str, Any]]:
    """The same for programs, each with what `evaluation` says of all of them."""
    return [
        {
            **evaluation,
            "id": one.id,
            "task_id": one.task_id,
            "trial": one.rollout_index,
            "question": one.question,
            "answer": one.answer,
            "gold": one.gold,
            "score": None if one.reward is None else one.reward.value,
            "error": one.error and one.error.message,
        }
        for one in trajectories
    ]
