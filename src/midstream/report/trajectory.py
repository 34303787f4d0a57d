"""A trajectory in blocks for the terminal, and as JSON values for the viewer: turns as labeled rows, calls, the end.

Both have the rows of `turn_rows.py`, the viewer with whole texts. Every text is plain text, in which control
characters are written out.
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
    if last := turn_rows.last_rows(trajectory, template):
        found += [blocks.heading("last reply"), _facts(last)]
    if trajectory.error is not None:
        more = "\n(--json prints the whole traceback)" * trajectory.error.foreign
        found.append(blocks.text(f"lost to {trajectory.error.text}{more}", "bad"))
    end: list[tuple[str, object]] = [
        ("answer", blocks.cell("(none)", "soft") if trajectory.answer is None else trajectory.answer),
        ("gold", trajectory.gold),
    ]
    end += reward_rows(trajectory.reward)
    end += [(row.label, blocks.cell(row.text, row.tone)) for row in turn_rows.end_rows(trajectory, template)]
    return [*found, blocks.facts(end)]


def _facts(rows: Sequence[Row]) -> Block | None:
    return blocks.facts((row.label, blocks.cell(row.text, row.tone)) for row in rows)


def reward_rows(reward: Score | None) -> list[tuple[str, object]]:
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
    trajectory: Trajectory,
    *,
    template: Template | None = None,
    first: int = 0,
    limit: int | None = None,
    trained: str = "",
    **place: Any,
) -> Block:
    """A trajectory, of a long one at most `limit` turns from `first` (from 0) on.

    `trained` is the role whose calls were trained on, "" for none. `place` are fields that the trajectory does not
    hold: part, place, advantage, vote.
    """
    stream = turn_rows.is_stream(trajectory)
    turns = trajectory.turns[first : None if limit is None else first + limit]
    number, shown = len(trajectory.opening_calls), []
    number += sum(len(turn.calls) for turn in trajectory.turns[:first])
    for turn in turns:
        shown.append(_turn(turn, template, stream, number, trained))
        number += len(turn.calls)
    calls, error = trajectory.calls, trajectory.error
    behind = len(calls) - len(trajectory.closing_calls)
    document = {
        "id": trajectory.id,
        "place": 0,
        "part": "",
        "task": trajectory.task_id,
        "family": trajectory.family,
        "question": trajectory.question,
        "agent": trajectory.agent,
        "gold": trajectory.gold,
        "answer": trajectory.answer,
        "reward": trajectory.reward and trajectory.reward.value,
        "reward_parts": trajectory.reward.parts if trajectory.reward else {},
        "feedback": trajectory.reward.feedback if trajectory.reward else "",
        "advantage": None,
        "status": trajectory.status,
        "stop": turn_rows.stop_words(trajectory.stop_reason),
        "error": "" if error is None else error.message if error.foreign else error.text,
        "cost_usd": trajectory.cost_usd,
        "duration_s": trajectory.duration_s,
        "prompt_tokens": sum(call.usage.prompt_tokens for call in calls),
        "completion_tokens": sum(call.usage.completion_tokens for call in calls),
        "opening": rows_document(turn_rows.opening_rows(trajectory)),
        "end": rows_document([*turn_rows.last_rows(trajectory, template), *turn_rows.end_rows(trajectory, template)]),
        "turns": shown,
        "first_turn": first,
        "turns_total": len(trajectory.turns),
        "opening_calls": [call_document(call, at, trained) for at, call in enumerate(trajectory.opening_calls)],
        "closing": [call_document(call, at, trained) for at, call in enumerate(trajectory.closing_calls, behind)],
        "vote": None,
        **place,
    }
    return safe(document)


def rows_document(rows: Iterable[Row]) -> list[Block]:
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


def call_document(call: Call, number: int, trained: str = "") -> Block:
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


def brief(turn: Turn) -> dict[str, str]:
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


def _turn(turn: Turn, template: Template | None, stream: bool, number: int, trained: str) -> Block:
    action = turn.action
    broken = action is not None and (
        turn_rows.is_bad_call(action, turn.command) if stream else action.error is not None
    )
    return {
        "index": turn.index,
        "tool": brief(turn)["tool"],
        "malformed": broken,
        "error": turn.error.line if turn.error else "",
        "rows": rows_document(turn_rows.turn_rows(turn, template, stream=stream)),
        "calls": [call_document(call, number + place, trained) for place, call in enumerate(turn.calls)],
    }


def _cut(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _BRIEF else f"{text[: _BRIEF - 1]}…"
