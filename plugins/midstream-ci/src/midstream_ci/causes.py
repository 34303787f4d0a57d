"""Why a run was not right, as one cause that many runs share, and which runs an expression chooses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from simpleeval import EvalWithCompoundTypes, InvalidExpression

from midstream.core.errors import UsageError
from midstream.core.trajectory import Trajectory
from midstream.evaluation.estimates import value

_LONGEST = 120
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")

FIELDS: dict[str, Callable[[Trajectory], object]] = {
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


@dataclass(kw_only=True)
class Cause:
    """Runs with one cause."""

    name: str
    runs: list[Trajectory] = field(default_factory=list)

    @property
    def tasks(self) -> list[str]:
        """Ids of their tasks, each once, in order."""
        return list(dict.fromkeys(run.task_id for run in self.runs))


def cause_of(run: Trajectory) -> str:
    """The first of these that is true of a run, from what broke to what was merely wrong; "right" for a reward of 1.

    An error; the last turn was malformed, or its tool answered with an error; the run stopped at a limit; no answer;
    the verifier called the memory sufficient, and the reward is 0; the words of a judge or reward; a wrong answer.
    Numbers and quoted texts of messages are left out, so that runs which failed alike are one cause.
    """
    if run.error is not None:
        return f"error: {_general(run.error.summary)}"
    if value(run) >= 1:
        return "right"
    last = next((turn for turn in reversed(run.turns) if turn.action is not None), None)
    limited = run.stop_reason not in ("verified", "answered", "ended")
    if last is not None and last.action is not None and (limited or not run.answer or last is run.turns[-1]):
        if last.action.error:
            return f"malformed: {_general(last.action.error)}"
        if last.observation is not None and last.observation.status == "error":
            return f"tool {last.action.tool}: {_general(last.observation.text)}"
    if limited:
        return f"stopped: {run.stop_reason}"
    if not run.answer:
        return "no answer"
    if last is not None and last.verdict is not None and last.verdict.memory_sufficient and not value(run):
        return "verifier against reward"
    if run.reward is not None and run.reward.feedback:
        return f"reward: {_general(run.reward.feedback)}"
    return "wrong answer"


def _general(message: str) -> str:
    line = next((line.strip() for line in message.splitlines() if line.strip()), "no text")
    return _NUMBERS.sub("N", _QUOTED.sub("'...'", line))[:_LONGEST]


def group_by_cause(runs: Iterable[Trajectory]) -> list[Cause]:
    """The causes of these runs, the most frequent first."""
    causes: dict[str, Cause] = {}
    for run in runs:
        name = cause_of(run)
        causes.setdefault(name, Cause(name=name)).runs.append(run)
    return sorted(causes.values(), key=lambda cause: -len(cause.runs))


def choose(runs: Iterable[Trajectory], expression: str) -> Iterator[Trajectory]:
    """The runs for which an expression over `FIELDS` is true.

    Raises `UsageError` for one that cannot be evaluated.
    """
    parser = EvalWithCompoundTypes(functions={"len": len, "lower": str.lower})
    for run in runs:
        parser.names = _Named(run)
        try:
            if parser.eval(expression):
                yield run
        except (InvalidExpression, SyntaxError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise UsageError(
                f"the expression {expression!r} cannot be evaluated: {error}",
                code="expression-invalid",
                fix=f"e.g. 'turns > 3 and \"python\" in tools'; names: {', '.join(FIELDS)}",
            ) from error


class _Named(Mapping[str, object]):
    """The fields of one run, each computed when an expression names it."""

    def __init__(self, run: Trajectory) -> None:
        self._run = run

    def __getitem__(self, name: str) -> object:
        return FIELDS[name](self._run)

    def __iter__(self) -> Iterator[str]:
        return iter(FIELDS)

    def __len__(self) -> int:
        return len(FIELDS)
