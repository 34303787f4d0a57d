"""A trajectory in blocks for the terminal, and as JSON values for the viewer: turns as labeled rows, calls, the end.

Both have the rows of `turn_rows.py`, the viewer with whole texts. Every text is plain text, in which control
characters are written out. A long trajectory comes in windows: its `frame` is the trajectory without turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from midstream.core.sequences import trainable
from midstream.core.stream_template import Template
from midstream.core.text import visible
from midstream.core.trajectory import Call, Score, Trajectory, Turn
from midstream.report import blocks, turn_rows
from midstream.report.blocks import Block
from midstream.report.numbers import number
from midstream.report.turn_rows import Row

_BRIEF = 160  # characters of a turn in a list of turns
_PARTS_IN_A_LINE = 3


def trajectory_blocks(trajectory: Trajectory, template: Template | None = None) -> list[Block | None]:
    """One task turn by turn, of a stream its parts by `template`; then answer, gold answer and reward."""
    stream = turn_rows.is_stream(trajectory)
    found = [blocks.text(trajectory.question or trajectory.task_id, "strong")]
    found += [blocks.text(turn_rows.LEGEND if stream else "", "soft"), _facts(turn_rows.opening_rows(trajectory))]
    for turn in trajectory.turns:
        found += [blocks.heading(f"turn {turn.index}"), _facts(turn_rows.turn_rows(turn, template, stream=stream))]
    last = turn_rows.closing_rows(trajectory, template)
    if last:
        found.append(blocks.heading("last reply"))
    found.append(_facts(last + [row for call in trajectory.closing_calls for row in turn_rows.trouble_rows(call)]))
    if trajectory.error is not None:
        more = "\n(--json prints the whole traceback)" * trajectory.error.foreign
        found.append(blocks.text(f"lost to {trajectory.error.text}{more}", "bad"))
    end: list[tuple[str, object]] = [
        ("answer", blocks.cell("(none)", "soft") if trajectory.answer is None else trajectory.answer),
        ("gold", trajectory.gold),
    ]
    outcome = turn_rows.outcome_words(trajectory.outcome)
    end += [("" if place else "outcome", each) for place, each in enumerate(outcome)]
    end += _reward(trajectory.reward)
    end += [(row.label, blocks.cell(row.text, row.tone)) for row in turn_rows.end_rows(trajectory, template)]
    return [*found, blocks.facts(end)]


def _facts(rows: Sequence[Row]) -> Block | None:
    return blocks.facts((row.label, blocks.cell(row.text, row.tone)) for row in rows)


def _reward(reward: Score | None) -> list[tuple[str, object]]:
    """The value, with its parts on the same line, or below it if there are many."""
    if reward is None:
        return [("reward", blocks.cell("(none)", "soft"))]
    tone = "up" if reward.value >= 1 else "bad" if reward.value <= 0 else ""
    parts = [f"{name} {number(part)}" for name, part in reward.parts.items()]
    if len(parts) <= _PARTS_IN_A_LINE:
        words = f"  ({', '.join(parts)})" if parts else ""
        return [("reward", blocks.cell(number(reward.value) + words, tone))]
    return [("reward", blocks.cell(number(reward.value), tone)), *(("", part.replace("_", " ")) for part in parts)]


def trajectory_document(
    frame: Trajectory,
    turns: Sequence[Turn] | None = None,
    *,
    template: Template | None = None,
    first_turn: int = 0,
    first_call: int = 0,
    turns_total: int | None = None,
    trained: str = "",
    **place: Any,
) -> dict[str, Any]:
    """A trajectory, or of a long one the `turns` from `first_turn` (from 0) on, whose first call has that number.

    Without `turns` they are the frame's. `trained` is the role whose calls were trained on, "" for none. `place` are
    fields that the trajectory does not hold: part, place, advantage, vote.
    """
    if turns is None:
        turns, turns_total, first_call = frame.turns, len(frame.turns), len(frame.opening_calls)
    stream = turn_rows.is_stream(frame)
    number, shown = first_call, []
    for turn in turns:
        shown.append(_turn(turn, template, stream, number, trained))
        number += len(turn.calls)
    whole = first_turn == 0 and turns_total == len(turns)
    calls = [*frame.calls, *(call for turn in turns for call in turn.calls)] if not frame.turns else frame.calls
    document = {
        "id": frame.id,
        "place": 0,
        "part": "",
        "task": frame.task_id,
        "family": frame.family,
        "question": frame.question,
        "agent": frame.agent,
        "gold": frame.gold,
        "answer": frame.answer,
        "reward": frame.reward and frame.reward.value,
        "reward_parts": frame.reward.parts if frame.reward else {},
        "feedback": frame.reward.feedback if frame.reward else "",
        "advantage": None,
        "status": frame.status,
        "stop": turn_rows.stop_words(frame.stop_reason),
        "error": "" if frame.error is None else frame.error.message if frame.error.foreign else frame.error.text,
        "cost_usd": frame.cost_usd,
        "duration_s": frame.duration_s,
        "prompt_tokens": sum(call.usage.prompt_tokens for call in calls) if whole else None,
        "completion_tokens": sum(call.usage.completion_tokens for call in calls) if whole else None,
        "opening": rows_document(turn_rows.opening_rows(frame)),
        "end": _end(frame, turns if whole else None, template),
        "turns": shown,
        "first_turn": first_turn,
        "turns_total": turns_total,
        "opening_calls": [call_document(call, place, trained) for place, call in enumerate(frame.opening_calls)],
        "closing": [call_document(call, number + place, trained) for place, call in enumerate(frame.closing_calls)],
        "vote": None,
        **place,
    }
    return safe(document)


def rows_document(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Labeled rows."""
    return [
        {
            "label": row.label.strip(),
            "text": row.text,
            "tone": "" if row.tone == "name" else row.tone,
            "block": row.label in turn_rows.BLOCKS or "\n" in row.text,
        }
        for row in rows
    ]


def call_document(call: Call, number: int, trained: str = "") -> dict[str, Any]:
    """One request without its texts, except for the reply; `number` counts from 0 in the trajectory."""
    return {
        "n": number,
        "role": call.role,
        "engine": call.engine,
        "model": str(call.sent.get("model", "")),
        "completion": call.completion,
        "finish": call.finish_reason,
        "prompt_tokens": call.usage.prompt_tokens,
        "completion_tokens": call.usage.completion_tokens,
        "policy_version": call.policy_version,
        "tokens": bool(call.prompt_ids or call.completion_ids),
        "trained": bool(trained) and call.role == trained and trainable(call),
        "error": call.error.line if call.error else "" if call.delivered else "the agent never received the reply",
        "retries": list(call.failures),
    }


def brief(turn: Turn, *, stream: bool) -> dict[str, str]:
    """A turn in one line: its tool, what was asked of it, and a tone for a turn that failed."""
    action, command, observation = turn.action, turn.command, turn.observation
    if action is None:
        text = turn.error.line if turn.error else turn.user or "".join(call.completion for call in turn.calls)
        return {"tool": "", "brief": _cut(text), "tone": "bad" if turn.error else ""}
    if action.error is not None:
        return {"tool": "", "brief": _cut(f"malformed: {action.error}"), "tone": "bad"}
    text = turn_rows.command_text(command) if command is not None else action.sub_goal or action.context
    failed = turn.error is not None or (command and command.error) or (observation and observation.status == "error")
    return {"tool": action.tool or (command.tool if command else ""), "brief": _cut(text), "tone": "bad" * bool(failed)}


def safe(value: Any) -> Any:
    """A JSON value with control characters written out in each text."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(str(key)): safe(entry) for key, entry in value.items()}
    return [safe(entry) for entry in value] if isinstance(value, list | tuple) else value


def _turn(turn: Turn, template: Template | None, stream: bool, number: int, trained: str) -> dict[str, Any]:
    action = turn.action
    broken = action is not None and (
        turn_rows.call_part(action, turn.command).failed if stream else action.error is not None
    )
    return {
        "index": turn.index,
        "tool": brief(turn, stream=stream)["tool"],
        "malformed": broken,
        "error": turn.error.line if turn.error else "",
        "rows": rows_document(turn_rows.turn_rows(turn, template, stream=stream)),
        "calls": [call_document(call, number + place, trained) for place, call in enumerate(turn.calls)],
    }


def _end(frame: Trajectory, turns: Sequence[Turn] | None, template: Template | None) -> list[dict[str, Any]]:
    """The rows of the end; of a part of a trajectory without those that need all turns."""
    outcome = [
        Row("" if place else "outcome", line) for place, line in enumerate(turn_rows.outcome_words(frame.outcome))
    ]
    some = frame.turns or turns or (Turn(index=1),) * (turns is None)
    trajectory = frame.model_copy(update={"turns": tuple(some)})
    rows = turn_rows.end_rows(trajectory, template)
    if turns is None:  # these speak of the turns
        rows = [row for row in rows if row.label not in ("stopped", "format", "rows", "")]
    closing = turn_rows.closing_rows(trajectory, template) if turn_rows.is_stream(frame) else []
    closing += [row for call in frame.closing_calls for row in turn_rows.trouble_rows(call)]
    return rows_document([*closing, *outcome, *rows])


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _BRIEF else f"{text[: _BRIEF - 1]}…"
