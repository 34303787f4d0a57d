"""A trajectory as labeled rows, for the timeline of a run and its record: in blocks, and as a document for the viewer.

An interleaved run reads as labeled parts in the order of its stream, with a mark for who wrote each:

    turn 1
      ▸ think      Add the squares up.
      ▸ call       python(code="print(sum(n * n for n in range(1, 41)))")
      ◂ output     22140
    last reply
      ▸ answer     22140

The mark says it without color: only what the policy wrote is trained on. Rows have whole texts, as they were recorded;
in a document control characters are written out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import JsonValue

from midstream.core import stream as streams
from midstream.core.errors import DeadlineError, PromptTooLongError, RecipeError
from midstream.core.sequences import trainable
from midstream.core.stream import POLICY, Piece
from midstream.core.stream_template import ANY_TOOL, Template, load_template
from midstream.core.trajectory import (
    Action,
    Call,
    Command,
    Observation,
    Score,
    StopReason,
    Trajectory,
    Turn,
    Verdict,
)
from midstream.report import blocks
from midstream.report.blocks import Block, safe
from midstream.report.numbers import counted, cut, number, shorten, troubles

_VOTE = 40  # characters of an answer among votes
_BRIEF = 160  # characters of a turn in a list of turns

# Stop reasons that say too little by their name.
_REASONS = {
    "ended": "the policy ended its reply without an answer",
    "token_limit": "limit of tokens, the stream was cut off",
    "context_limit": "limit of the model's context",
    "time_limit": "time limit",
}
BLOCKS = ("command", "code", "call", "▸ call", "observation", "◂ output", "sampled")  # labels of rows that are no prose
_LIMITS = {PromptTooLongError.__name__, DeadlineError.__name__}

# put-in: the environment wrote it, not the policy.
Tone = Literal["", "strong", "up", "bad", "warn", "soft", "name", "put-in"]


class Row(NamedTuple):
    """A label with its text, which is whole and as it was recorded."""

    label: str
    text: str
    tone: Tone = ""


def opening_rows(trajectory: Trajectory) -> list[Row]:
    """What came before the first turn: the analysis of the query, and requests that failed."""
    rows = [Row("analysis", trajectory.analysis)] if trajectory.analysis else []
    if trajectory.fork_of:
        replayed = sum(call.replayed for call in trajectory.calls)
        rows.append(Row("forked", f"from {trajectory.fork_of}, with {replayed} of {trajectory.fork_at} replies"))
    return rows + trouble_rows(*trajectory.opening_calls)


def turn_rows(turn: Turn, template: Template | None = None, *, stream: bool = False) -> list[Row]:
    """Everything a recorded turn holds, in the order in which it happened; of a stream its parts, by `template`."""
    if stream:
        rows = [stream_row("user", turn.user, sampled=False)] if turn.user else []
        rows += reply_rows(turn.calls, template, first=turn.index == 1, without=("call",) * (turn.action is not None))
        rows += [call_row(turn.action, turn.command)] if turn.action is not None else []
        rows += [output_row(turn.observation)] if turn.observation is not None else []
    else:
        parts = (turn.action, turn.command, turn.observation, turn.verdict)
        rows = [row for part in parts if part is not None for row in part_rows(part, turn.calls)]
    rows += trouble_rows(*turn.calls)
    if turn.error is not None:
        limit = turn.error.type in _LIMITS
        rows.append(Row("limit" if limit else "broken", turn.error.line, "warn" if limit else "bad"))
    return rows


def part_rows(part: Action | Command | Observation | Verdict, calls: Sequence[Call] = ()) -> list[Row]:
    """A part of a turn of modules; of a malformed action also what was sampled, if `calls` hold it."""
    match part:
        case Action(error=str(error)):
            rows = [Row("action", f"malformed: {error}", "bad")]
            sampled = next((call.completion for call in calls if call.role == "planner" and call.completion), "")
            return rows + ([Row("sampled", sampled)] if sampled else [])
        case Action():
            rows = [Row("sub-goal", part.sub_goal), Row("tool", part.tool, "name")]
            return rows + ([Row("context", part.context)] if part.context else [])
        case Command():
            label = "command" if part.code is None else "code"
            return [Row(label, command_text(part), "bad" if part.error else "")]
        case Observation():
            rows = []
            for call in part.tool_calls:
                lost = call.status == "error"
                text = f"{call_text(call.tool, call.arguments)} -> {'error: ' * lost}{call.text}"
                rows.append(Row("call", text, "bad" if lost else ""))
            failed = part.status == "error"
            tone: Tone = "soft" if not part.text else "bad" if failed else ""
            return [*rows, Row("error" if failed else "observation", part.text or "(empty)", tone)]
        case Verdict():
            judged = "result valid" if part.result_valid else "result not valid"
            analysis = f": {part.analysis}" if part.analysis else ""
            return [Row("verdict", f"{part.signal}, {judged}{analysis}")]


def command_text(command: Command) -> str:
    """A command as one reads it: its code, or its tool and arguments; an invalid one with its error."""
    values = list(command.arguments.values())
    if command.code is not None:
        text = command.code
    elif len(values) == 1 and isinstance(values[0], str) and "\n" in values[0]:  # code, too
        text = values[0]
    else:
        text = call_text(command.tool, command.arguments)
    return f"{text}\ninvalid: {command.error}" if command.error else text


def call_text(tool: str, arguments: dict) -> str:
    """A tool's call as one reads it."""
    return f"{tool}({', '.join(f'{key}={json.dumps(value, ensure_ascii=False)}' for key, value in arguments.items())})"


def trouble_rows(*calls: Call) -> list[Row]:
    """Failed attempts of requests, and replies that had to be repaired. Their final error is the turn's."""
    rows = []
    for call in calls:
        role = call.role or call.engine or "request"
        rows += [Row(f"retry {place}", f"{role}: {reason}", "warn") for place, reason in enumerate(call.failures, 1)]
        if call.repaired:
            rows.append(Row("repaired", f"the reply of the {role} was not JSON until it was repaired", "warn"))
    return rows


def end_rows(trajectory: Trajectory) -> list[Row]:
    """What there is to know of a run's end below its answer: its outcome, why it stopped, what failed around it."""
    outcome = outcome_words(trajectory.outcome)
    rows = [Row("" if place else "outcome", line) for place, line in enumerate(outcome)]
    if trajectory.refinement is not None:
        done = trajectory.refinement
        last = Counter(chain[-1] or "no answer" for chain in done.answers if chain)
        votes = ", ".join(f"{count} x {shorten(answer, _VOTE)}" for answer, count in last.most_common())
        words = f"{done.strategy}, {counted(done.agent_runs, 'agent run')}; last answers {votes}"
        rows.append(Row("chains", words))
    rows.append(Row("stopped", stopped(trajectory)))
    if trajectory.sandbox:
        rows.append(Row("sandbox", trajectory.sandbox))
    for attempt, error in enumerate(trajectory.earlier_errors, 1):
        rows.append(Row(f"run {attempt}", f"failed: {error.line}", "warn"))
    if trouble := troubles(trajectory.request_failures, trajectory.replies_repaired):
        rows.append(Row("requests", trouble, "warn"))
    return rows


def stopped(trajectory: Trajectory) -> str:
    """Why a run ended, and after how many turns."""
    return f"{stop_words(trajectory.stop_reason)}, {counted(len(trajectory.turns), 'turn')}"


def stop_words(reason: StopReason) -> str:
    """A stop reason in words."""
    return _REASONS.get(reason, reason.replace("_", " "))


WRITTEN, PUT_IN = "▸", "◂"
LEGEND = f"{WRITTEN} written by the policy   {PUT_IN} put in by tools and users"


def stream_row(label: str, text: str, *, sampled: bool = True, failed: bool = False) -> Row:
    """A part of a stream, with the mark of who wrote it."""
    tone: Tone = "soft" if not text else "bad" if failed else "" if sampled else "put-in"
    return Row(f"{WRITTEN if sampled else PUT_IN} {label}", text or "(empty)", tone)


def is_stream(trajectory: Trajectory) -> bool:
    """Whether an interleaved policy made it."""
    return trajectory.agent in ("interleaved", "direct")


def template_of(resolved: Mapping[str, Any]) -> Template | None:
    """The template of a resolved recipe's policy; None for another kind of agent, or if the file is gone."""
    name = (resolved.get("agent") or {}).get("template")
    try:
        return load_template(name) if isinstance(name, str) else None
    except RecipeError:
        return None


def last_rows(trajectory: Trajectory, template: Template | None) -> list[Row]:
    """The reply that ended a stream, and requests that failed after the last turn."""
    rows = reply_rows(trajectory.closing_calls, template, first=not trajectory.turns)
    return rows + trouble_rows(*trajectory.closing_calls)


def reply_rows(
    calls: Sequence[Call], template: Template | None, *, first: bool, without: Collection[str] = ()
) -> list[Row]:
    """The parts of one reply of the policy, in one request or several; other requests among `calls` are left out.

    `without` are kinds of parts that are shown elsewhere if they are well formed. `first`: the reply follows the
    template's opening. Without the template, where its file is gone, it stays whole.
    """
    ours = [call for call in calls if call.role == POLICY]
    written = "".join(call.completion for call in ours)
    rows = [stream_row("reply", written)] if written and template is None else []
    if written and template is not None:
        labels = {"text": "reply"} if template.appends == "message" else {}
        here = template if first else template.model_copy(update={"opening": ""})
        for block in streams.blocks([Piece(text=written, sampled=True)], here):
            wrong = _malformed(block, template)
            if (block.kind != "text" or block.body.strip()) and (wrong or block.kind not in without):
                rows.append(stream_row(labels.get(block.kind, block.kind), block.body.strip()))
                rows += [Row("  malformed", wrong, "bad")] if wrong else []
    if ours and ours[-1].finish_reason == "length":
        rows.append(stream_row("cut off", "the limit of tokens ended the reply here", failed=True))
    return rows


def call_row(action: Action, command: Command | None) -> Row:
    """A tool call as it was understood, or as it was written if it could not be: its output has the reason."""
    if is_bad_call(action, command):
        return stream_row("bad call", action.context, failed=True)
    return stream_row("call", command_text(command) if command else "")


def is_bad_call(action: Action, command: Command | None) -> bool:
    """Whether a policy's tool call could not be understood."""
    return bool(action.error or command is None or command.error)


def output_row(observation: Observation) -> Row:
    """The result of a call."""
    failed = observation.status == "error"
    return stream_row("error" if failed else "output", observation.text, sampled=False, failed=failed)


def outcome_words(outcome: dict[str, JsonValue]) -> list[str]:
    """What a dialogue's check found: whether it was done, then what each user turn lacks; otherwise the facts."""
    if "success" not in outcome:  # a program has the gateway's counters
        return [f"{name}: {shorten(json.dumps(fact), _VOTE)}" for name, fact in outcome.items()]
    turns = outcome.get("turns")
    turns = turns if isinstance(turns, list) else []
    done = "done" if outcome.get("success") else "not done"
    lines = [f"{done}, {counted(len(turns), 'user turn')}" if turns else done]
    for place, turn in enumerate(turns, 1):  # {"state": [3, 4]} is "user turn 2: state 3 of 4"
        shares = turn.items() if isinstance(turn, dict) else ()
        pairs = [(name, pair) for name, pair in shares if isinstance(pair, list) and len(pair) == 2]
        if lacking := [f"{name} {pair[0]} of {pair[1]}" for name, pair in pairs if pair[0] != pair[1]]:
            lines.append(f"user turn {place}: {', '.join(lacking)}")
    return lines


def _malformed(block: streams.Block, template: Template) -> str:
    """What is malformed about a block, in words; "" if nothing is."""
    found = ["the policy wrote this itself, no tool did"] if block.kind == "output" else []
    if not block.closed:
        closing = template.tags[block.kind].close.replace(ANY_TOOL, block.tool)
        found.append(f"never closed: {closing} is missing" + ", the next mark ends it" * block.nested)
    elif block.nested:
        found.append("its mark opens again inside it")
    return "; ".join(found)


# --- blocks and documents ---------------------------------------------------------------------------------------------


def trajectory_blocks(trajectory: Trajectory, template: Template | None = None) -> list[Block | None]:
    """One task turn by turn, of a stream its parts by `template`; then answer, gold answer and reward."""
    stream = is_stream(trajectory)
    found = [blocks.text(trajectory.question or trajectory.task_id, "strong")]
    found += [blocks.text(LEGEND if stream else "", "soft"), _facts(opening_rows(trajectory))]
    for turn in trajectory.turns:
        found += [blocks.heading(f"turn {turn.index}"), _facts(turn_rows(turn, template, stream=stream))]
    if last := last_rows(trajectory, template):
        found += [blocks.heading("last reply"), _facts(last)]
    if trajectory.error is not None:
        more = "\n(--json prints the whole traceback)" * trajectory.error.foreign
        found.append(blocks.text(f"lost to {trajectory.error.text}{more}", "bad"))
    answer = Row("answer", "(none)", "soft") if trajectory.answer is None else Row("answer", trajectory.answer)
    gold = [Row("gold", trajectory.gold)] if trajectory.gold is not None else []
    return [*found, _facts([answer, *gold, reward_row(trajectory.reward), *end_rows(trajectory)])]


def _facts(rows: Sequence[Row]) -> Block | None:
    return blocks.facts((row.label, blocks.cell(row.text, row.tone)) for row in rows)


def reward_row(reward: Score | None) -> Row:
    """The value with its parts."""
    if reward is None:
        return Row("reward", "(none)", "soft")
    parts = ", ".join(f"{name.replace('_', ' ')} {number(part)}" for name, part in reward.parts.items())
    tone: Tone = "up" if reward.value >= 1 else "bad" if reward.value <= 0 else ""
    return Row("reward", number(reward.value) + (f"  ({parts})" if parts else ""), tone)


def trajectory_document(
    trajectory: Trajectory,
    *,
    template: Template | None = None,
    first: int = 0,
    limit: int | None = None,
    trained: Collection[str] = (),
    **place: Any,
) -> Block:
    """A trajectory, of a long one at most `limit` turns from `first` (from 0) on.

    `trained` are the roles whose calls were trained on. `place` are fields that the trajectory does not hold: part,
    place, advantage, vote.
    """
    stream, error, opening = is_stream(trajectory), trajectory.error, len(trajectory.opening_calls)
    calls = [call_document(call, number, trained) for number, call in enumerate(trajectory.calls)]
    at, turns = opening + sum(len(turn.calls) for turn in trajectory.turns[:first]), []
    for turn in trajectory.turns[first : None if limit is None else first + limit]:
        action = turn.action
        broken = action is not None and (is_bad_call(action, turn.command) if stream else action.error is not None)
        turns.append(
            {
                "index": turn.index,
                "tool": brief(turn)["tool"],
                "malformed": broken,
                "error": turn.error.line if turn.error else "",
                "rows": rows_document(turn_rows(turn, template, stream=stream)),
                "calls": calls[at : at + len(turn.calls)],
            }
        )
        at += len(turn.calls)
    recorded = ("id", "family", "question", "agent", "gold", "answer", "status", "cost_usd", "duration_s")
    document = {
        **{name: getattr(trajectory, name) for name in recorded},
        "place": 0,
        "part": "",
        "task": trajectory.task_id,
        "reward": trajectory.reward and trajectory.reward.value,
        "reward_parts": trajectory.reward.parts if trajectory.reward else {},
        "feedback": trajectory.reward.feedback if trajectory.reward else "",
        "advantage": None,
        "stop": stop_words(trajectory.stop_reason),
        "error": "" if error is None else error.message if error.foreign else error.text,
        "prompt_tokens": sum(call["prompt_tokens"] for call in calls),
        "completion_tokens": sum(call["completion_tokens"] for call in calls),
        "opening": rows_document(opening_rows(trajectory)),
        "end": rows_document([*last_rows(trajectory, template), *end_rows(trajectory)]),
        "turns": turns,
        "first_turn": first,
        "turns_total": len(trajectory.turns),
        "opening_calls": calls[:opening],
        "closing": calls[len(calls) - len(trajectory.closing_calls) :],
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
            "block": row.label in BLOCKS or "\n" in row.text,
        }
        for row in rows
    ]


def call_document(call: Call, number: int, trained: Collection[str] = ()) -> Block:
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
        "trained": call.role in trained and trainable(call),
        "error": call.error.line if call.error else "" if call.delivered else "the agent never received the reply",
        "retries": list(call.failures),
    }


def brief(turn: Turn) -> dict[str, str]:
    """A turn in one line: its tool, what was asked of it, and a tone for a turn that failed."""
    action, command, observation = turn.action, turn.command, turn.observation
    tool, failed = "", turn.error is not None
    if action is None:
        text = turn.error.line if turn.error else turn.user or "".join(call.completion for call in turn.calls)
    elif action.error is not None:
        text, failed = f"malformed: {action.error}", True
    else:
        text = command_text(command) if command is not None else action.sub_goal or action.context
        tool = action.tool or (command.tool if command else "")
        failed |= bool(command and command.error) or bool(observation and observation.status == "error")
    return {"tool": tool, "brief": cut(" ".join(text.split()), _BRIEF), "tone": "bad" * failed}
