"""What happened in a turn as labelled rows of text: the same on the timeline of a run and in its record afterwards."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from midstream.core.trajectory import Action, Call, Command, ErrorInfo, Observation, ToolCall, Trajectory, Turn, Verdict
from midstream.report.numbers import counted, shorten, visible

_TEXT_LIMIT = 1500

# Stop reasons that say too little by their name.
_REASONS = {
    "ended": "the policy ended its reply without an answer",
    "token_limit": "limit of tokens, the stream was cut off",
}

Row = tuple[str, Text]


def plain(text: str, style: str = "") -> Text:
    """Model or tool text for the terminal: never markup, control characters written out, long text cut with a note."""
    return Text(visible(shorten(text, _TEXT_LIMIT)), style)


def fields(least: int = 0) -> Table:
    """A grid for rows: labels, of which the column has `least` characters, and text that is folded rather than cut."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=least)
    table.add_column(overflow="fold")
    return table


def turn_rows(turn: Turn) -> list[Row]:
    """Everything a recorded turn holds, in the order in which it happened."""
    rows: list[Row] = []
    if turn.action is not None:
        rows += action_rows(turn.action, turn.calls)
    if turn.command is not None:
        rows += command_rows(turn.command)
    if turn.observation is not None:
        rows += observation_rows(turn.observation)
    if turn.verdict is not None:
        rows += verdict_rows(turn.verdict)
    rows += [row for call in turn.calls for row in trouble_rows(call)]
    if turn.error is not None:
        rows.append(("broken", plain(broken(turn.error), "bold red")))
    return rows


def action_rows(action: Action, calls: Sequence[Call] = ()) -> list[Row]:
    """The planner's decision; of a malformed one what was sampled, if `calls` hold it."""
    if action.error is not None:
        rows = [("action", plain(f"malformed: {action.error}", "red"))]
        sampled = next((call.completion for call in calls if call.role == "planner" and call.completion), "")
        return rows + ([("sampled", plain(sampled))] if sampled else [])
    rows = [("sub-goal", plain(action.sub_goal)), ("tool", plain(action.tool, "cyan"))]
    return rows + ([("context", plain(action.context))] if action.context else [])


def command_rows(command: Command) -> list[Row]:
    """The executor's tool call or program."""
    return [("command" if command.code is None else "code", plain(command_text(command), "red" * bool(command.error)))]


def command_text(command: Command) -> str:
    """A command as one reads it: its code, or its tool and arguments; an invalid one with its error.

    A single argument of several lines is code too.
    """
    values = list(command.arguments.values())
    if command.code is not None:
        text = command.code
    elif len(values) == 1 and isinstance(values[0], str) and "\n" in values[0]:
        text = values[0]
    else:
        text = call_text(command.tool, command.arguments)
    return f"{text}\ninvalid: {command.error}" if command.error else text


def call_text(tool: str, arguments: dict) -> str:
    """A tool's call as one reads it."""
    return f"{tool}({', '.join(f'{key}={json.dumps(value, ensure_ascii=False)}' for key, value in arguments.items())})"


def observation_rows(observation: Observation) -> list[Row]:
    """What came of the command: the calls that its code made, then the result."""
    failed = observation.status == "error"
    result = plain(observation.text, "red" if failed else "") if observation.text else Text("(empty)", "dim")
    calls = [
        ("call", plain(tool_call_text(one), "red" if one.status == "error" else "")) for one in observation.tool_calls
    ]
    return [*calls, ("error" if failed else "observation", result)]


def tool_call_text(call: ToolCall) -> str:
    """A call that code made, with its result."""
    return f"{call_text(call.tool, call.arguments)} -> {'error: ' * (call.status == 'error')}{call.text}"


def verdict_rows(verdict: Verdict) -> list[Row]:
    """The verifier's judgement."""
    judged = "result valid" if verdict.result_valid else "result not valid"
    analysis = f": {verdict.analysis}" if verdict.analysis else ""
    return [("verdict", plain(f"{verdict.signal}, {judged}{analysis}"))]


def trouble_rows(call: Call) -> list[Row]:
    """What went wrong around a request, as `problems` says it."""
    return [(label, plain(text, "yellow")) for label, text in problems(call)]


def problems(call: Call) -> list[tuple[str, str]]:
    """Attempts of a request that failed, and a reply that had to be mended, each as (label, text).

    The error that a request ended in is the turn's.
    """
    who = call.role or call.engine or "request"
    found = [(f"retry {number}", f"{who}: {reason}") for number, reason in enumerate(call.failures, 1)]
    return found + ([("repaired", f"the reply of the {who} was no JSON until it was mended")] if call.repaired else [])


def stopped(trajectory: Trajectory) -> str:
    """Why a run ended, and after how many turns."""
    reason = _REASONS.get(trajectory.stop_reason, trajectory.stop_reason.replace("_", " "))
    return f"{reason}, {counted(len(trajectory.turns), 'turn')}"


def broken(error: ErrorInfo) -> str:
    """What ended a turn that was no fault of the model, in a line."""
    return f"{error.type}: {error.message}".partition("\n")[0]
