"""Why a run was not right, as one cause that many runs share; which runs an expression chooses; tasks made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from simpleeval import EvalWithCompoundTypes

from midstream.core.errors import UsageError
from midstream.core.text import visible
from midstream.core.trajectory import Trajectory
from midstream.evaluation.estimates import value

_LONGEST = 120
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")

FIELDS: Mapping[str, Callable[[Trajectory], object]] = {
    "reward": lambda run: value(run),
    "task": lambda run: run.task_id,
    "family": lambda run: run.family,
    "question": lambda run: run.question,
    "answer": lambda run: run.answer or "",
    "gold": lambda run: run.gold or "",
    "stop": lambda run: run.stop_reason,
    "status": lambda run: run.status,
    "turns": lambda run: len(run.turns),
    "tools": lambda run: [turn.action.tool for turn in run.turns if turn.action is not None],
    "tool_errors": lambda run: sum(turn.observation.status == "error" for turn in run.turns if turn.observation),
    "tokens": lambda run: sum(call.usage.prompt_tokens + call.usage.completion_tokens for call in run.calls),
    "cost_usd": lambda run: run.cost_usd,
    "feedback": lambda run: run.reward.feedback if run.reward else "",
    "cause": lambda run: cause_of(run),
}
"""What an expression can name, such as `turns > 3 and "python" in tools`."""


def reason_of(run: Trajectory) -> tuple[str, str]:
    """The first of these that is true of a run, from what broke to what was merely wrong, and its words, if it has any.

    An error; "right", a reward of 1; the last turn was malformed, or its tool answered with an error; the run stopped
    at a limit; no answer; the verifier called the memory sufficient, and the reward is 0; the words of a judge or
    reward; a wrong answer.
    """
    if run.error is not None:
        return "error", run.error.summary
    if value(run) >= 1:
        return "right", ""
    last = next((turn for turn in reversed(run.turns) if turn.action is not None), None)
    limited = run.stop_reason not in ("verified", "answered", "ended")
    if last is not None and last.action is not None and (limited or not run.answer or last is run.turns[-1]):
        if last.action.error:
            return "malformed", last.action.error
        if last.observation is not None and last.observation.status == "error":
            return f"tool {last.action.tool}", last.observation.text
    if limited:
        return f"stopped: {run.stop_reason}", ""
    if not run.answer:
        return "no answer", ""
    if last is not None and last.verdict is not None and last.verdict.memory_sufficient and not value(run):
        return "verifier against reward", ""
    if run.reward is not None and run.reward.feedback:
        return "reward", run.reward.feedback
    return "wrong answer", ""


def cause_of(run: Trajectory) -> str:
    """The reason and its words' first line, without numbers and quoted texts: runs that failed alike have one cause."""
    reason, words = reason_of(run)
    line = next((line.strip() for line in words.splitlines() if line.strip()), "")
    general = _NUMBERS.sub("N", _QUOTED.sub("'...'", line))[:_LONGEST]
    return f"{reason}: {general}" if general else reason


def matches(run: Trajectory, expression: str) -> bool:
    """Whether an expression over `FIELDS` is true of a run. Raises `UsageError` for one that cannot be evaluated."""
    names = {name: field(run) for name, field in FIELDS.items()}
    parser = EvalWithCompoundTypes(functions={"len": len, "lower": str.lower}, names=names)
    try:
        return bool(parser.eval(expression))
    except Exception as error:  # a user's text may fail in any way, too deep a nesting included
        raise UsageError(
            f"the expression {expression!r} cannot be evaluated for {run.id}: {error}",
            code="expression-invalid",
            fix=f"e.g. 'turns > 3 and \"python\" in tools'; names: {', '.join(FIELDS)}",
        ) from error


def add_task(run: Trajectory, lines: dict[str, str], ids: dict[str, str]) -> str:
    """Add the task of a run to `lines` of a file that `--tasks FILE` reads, if its question is new; returns its id.

    `ids` are those of the questions: a file may not repeat one, so the first answer stays. A question whose id another
    one has gets its own, such as "a-2".
    """
    asked, name, number = " ".join(run.question.split()) or run.task_id, run.task_id, 2
    if asked not in ids:
        while name in lines:
            name, number = f"{run.task_id}-{number}", number + 1
        answer = [run.gold, *run.aliases] if run.aliases else run.gold or ""
        row = {"id": name, "question": run.question, "answer": answer, "family": run.family or None}
        ids[asked], lines[name] = name, visible(json.dumps(row, ensure_ascii=False))
    return ids[asked]
