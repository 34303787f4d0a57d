"""Summaries in Markdown, for a pull request or the page of a build."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice

from midstream.core.text import counted, shorten
from midstream.evaluation.estimates import value
from midstream.evaluation.pairs import Paired
from midstream.report.evaluation import evaluated_trajectories
from midstream.report.numbers import dollars, number, percent
from midstream.runs import RunDirectory
from midstream_ci.comparisons import Compared, without_result
from midstream_ci.requirements import Decision, Outcome

_SHOWN = 20
_MARKS_OF_MARKDOWN = re.compile(r"[\\`*_\[\]!@|<]")
_LONGEST, _LONGEST_REASON = 120, 500
_MARKS: dict[Outcome, str] = {"holds": "✅ holds", "fails": "❌ fails", "undecided": "❔ undecided"}


def evaluation_summary(run: RunDirectory, decisions: Sequence[Decision]) -> str:
    """The summary of an evaluation: requirements, sets, and the first runs that are not right."""
    results = list(run.evaluations.read())
    rows = [
        (
            result.set_name,
            result.sampling,
            number(result.tasks),
            percent(result.success),
            " to ".join(map(percent, result.interval)) if result.interval else "",
            number(result.errors),
            number(result.prompt_tokens + result.completion_tokens),
            dollars(result.cost_usd),
        )
        for result in results
    ]
    heads = ("set", "sampling", "tasks", "success", "95% interval", "errors", "tokens", "cost")
    parts = [f"## {run.info().recipe_name}", *_decided(decisions), _table(heads, rows)]
    for result in results:
        wrong = (trial for trial in evaluated_trajectories(run, result) if value(trial) < 1)
        shown = [
            (trial.id, trial.question, trial.gold or "", trial.answer or "", trial.error.summary if trial.error else "")
            for trial in islice(wrong, _SHOWN)
        ]
        if shown:
            more = f", and {counted(rest, 'more')}" if (rest := sum(1 for _ in wrong)) else ""
            title = f"{result.set_name} {result.sampling}: {counted(len(shown), 'run')} that are not right{more}"
            table = _table(("run", "question", "gold", "answer", "error"), shown)
            parts.append(f"<details><summary>{title}</summary>\n\n{table}\n\n</details>")
    return "\n\n".join(parts) + "\n"


def comparison_summary(comparison: Compared, decisions: Sequence[Decision]) -> str:
    """The summary of a comparison: requirements, and the difference on each set."""
    rows = []
    for pair in comparison.found:
        between = " to ".join(f"{100 * bound:+.1f}" for bound in pair.interval) if pair.interval else "none"
        tally = f"{pair.wins} won, {pair.losses} lost, {pair.ties} tied" if isinstance(pair, Paired) else pair.method
        tally += f"; without a result: {lost}" if (lost := without_result(comparison, pair)) else ""
        rows.append(
            (pair.set_name, pair.sampling, pair.first, pair.other, f"{100 * pair.difference:+.1f}", between,
             pair.verdict or "", tally)
        )  # fmt: skip
    heads = ("set", "sampling", "first", "other", "points", "interval", "other is", "")
    notes = "\n".join(f"- {note}" for note in comparison.notes)
    return "\n\n".join(["## Comparison", *_decided(decisions), _table(heads, rows), *filter(None, [notes])]) + "\n"


def _decided(decisions: Sequence[Decision]) -> list[str]:
    rows = [(_MARKS[one.outcome], one.requirement, one.of, one.reason) for one in decisions]
    return [_table(("", "requirement", "on", "why"), rows, _LONGEST_REASON)] if rows else []


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], longest: int = _LONGEST) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(_cell(text, longest) for text in line)} |" for line in lines)


def _cell(text: str, longest: int) -> str:
    """A text that stays in its cell."""
    plain = "".join(mark if mark.isprintable() else " " for mark in shorten(" ".join(text.split()), longest))
    # A model's text makes no picture, link or mention in somebody's page.
    return _MARKS_OF_MARKDOWN.sub(lambda mark: f"&#{ord(mark[0])};", plain)
