"""A practice run's report as HTML: each lesson with its effect and its rollouts, and the changes that were not made."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from midstream.core.trajectory import Trajectory
from midstream.practice.library import Lesson
from midstream.report.numbers import counted, cut, number, shorten
from midstream.report.practice_charts import whisker, whisker_span
from midstream.report.practice_data import PracticeData, Tried, about, by_effect, learned, points, proven, tried
from midstream.report.sections import cell, heads, table, text

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
