"""The page of an evaluation: success with its interval, trials, families, effort, tools, and what went wrong."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.core.metrics import EvaluationResult
from midstream.report import blocks
from midstream.report.blocks import Section, text
from midstream.report.evaluation_tables import evaluation_tables, notes_on, summary_line
from midstream.report.numbers import counted, dollars, number, percent

_NOTE_NAMES = 11  # characters of a note that name it


def evaluation_page(results: Sequence[EvaluationResult]) -> tuple[str, list[Section]]:
    """The lead and the sections of an evaluation of one or several sets; `results` may be empty."""
    several = len({result.sampling for result in results}) > 1
    tiles = [
        blocks.tile(
            f"Success, {result.set_name}" + (f", {result.sampling}" if several else ""),
            percent(result.success),
            f"95%: {' to '.join(map(percent, result.interval))}" if result.interval else counted(result.tasks, "task"),
        )
        for result in results
    ]
    tokens = sum(result.prompt_tokens + result.completion_tokens for result in results)
    cost = sum(result.cost_usd for result in results)
    tiles.append(blocks.tile("Tokens", number(tokens), dollars(cost) if cost else ""))
    errors = sum(result.errors for result in results)
    tiles.append(blocks.tile("Without a result", f"{errors:,}", "counted as wrong"))
    named = [(note[:_NOTE_NAMES].strip(), note[_NOTE_NAMES:]) for note in notes_on(results)]
    shown = [block for table in evaluation_tables(results) for block in blocks.of_screen(table)]
    lead = ". ".join(summary_line(result) for result in results) or "No set has been evaluated yet"
    return f"{lead}.", [
        ("summary", "At a glance", [blocks.tiles(tiles if results else [])]),
        ("results", "Results", shown if results else [text("Nothing was evaluated.", "soft")]),
        ("notes", "How it was scored, and what went wrong", [blocks.facts(named)]),
    ]
