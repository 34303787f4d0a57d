"""`midstream compare A B [C ...]`: which of several evaluations of the same tasks is better, and how sure that is."""

from __future__ import annotations

import argparse
import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.text import Text

from midstream import api
from midstream.cli import options as shared
from midstream.core.errors import UsageError
from midstream.core.terminal import Terminal
from midstream.recipe.schema import differing_settings
from midstream.report.evaluation_tables import label
from midstream.report.numbers import counted
from midstream.report.tables import compared_screen, effort_table, sentence, tool_share_table

_SETTINGS_SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    parser.add_argument("first", help="evaluation or run directory; RUN@STEP for a step other than the last evaluated")
    parser.add_argument("others", nargs="+", metavar="other", help="each is compared with the first")
    parser.add_argument("--tasks", action="store_true", help="list the tasks that differ, with the answers")
    shared.add(parser, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Compare every later evaluation with the first, on each set and sampling that both have."""
    names = [options.first, *options.others]
    if len(names) > len(string.ascii_uppercase):
        raise UsageError(
            f"{len(names)} evaluations are too many for one table",
            code="too-many",
            cause=f"each gets a letter, and there are {len(string.ascii_uppercase)}",
            fix="compare fewer at a time",
        )
    comparison = api.compare(*names)
    first, *others = comparison.runs
    letters = {compared.name: letter for compared, letter in zip(comparison.runs, string.ascii_uppercase, strict=False)}
    notes = [f"not compared: {error.what}" + f" ({error.cause})" * bool(error.cause) for error in comparison.refused]
    for compared in comparison.runs:
        if (state := compared.run.status().state) != "finished":
            notes.append(f"{letters[compared.name]} is {state}: its results so far are compared")
    for other in others:
        notes += _differences(letters, first, other)
    if options.json:
        records = [
            {**paired.model_dump(exclude=None if options.tasks else {"differing"}), "said": sentence(letters, paired)}
            for paired in comparison.found
        ]
        print(json.dumps({"compared": records, "notes": notes}))
        return 0
    console = Terminal()
    for compared in comparison.runs:
        resolved: Any = compared.run.info().resolved
        agent = resolved.get("agent", {})
        # The kind of agent, the template of an interleaved one, and the policies.
        words = [agent.get("type", ""), Path(str(agent.get("template", ""))).stem]
        policies = [label([result], "") for result in compared.results.values()]
        described = ", ".join(filter(None, [" ".join(filter(None, words)), *dict.fromkeys(policies)]))
        console.print(Text(f"{letters[compared.name]}  {compared.name} ({described})"))
    console.print()
    console.print(compared_screen(letters, comparison.found, tasks=options.tasks))
    for key in dict.fromkeys((paired.set_name, paired.sampling) for paired in comparison.found):
        sides = {
            letters[compared.name]: compared.results[key] for compared in comparison.runs if key in compared.results
        }
        console.print()
        console.print(effort_table(sides, f"{', '.join(key)}: what a task took"))
        several = [paired for paired in comparison.found if (paired.set_name, paired.sampling) == key and paired.tools]
        if several:
            console.print(tool_share_table(letters, several, f"{', '.join(key)}: share of turns by tool"))
    if len(others) > 1:
        console.print(
            f"\nWith {len(others)} comparisons against {letters[first.name]} each interval of success is made wider "
            "(Bonferroni), so that all of them together hold in 95% of cases; those of tools are not."
        )
    if notes:
        console.print(Text("\n" + "\n".join(notes), "yellow"))
    return 0


def _differences(letters: Mapping[str, str], first: api.ComparedRun, other: api.ComparedRun) -> list[str]:
    """What the two do not share: sets, trials, settings of their recipes."""
    a, b = letters[first.name], letters[other.name]
    notes = []
    for has, lacks, letter, other_letter in ((first, other, a, b), (other, first, b, a)):
        alone = [" ".join(key) for key in has.results if key not in lacks.results]
        notes += [f"{letter} has {', '.join(alone)}, {other_letter} has not"] if alone else []
    for key, result in first.results.items():
        if key in other.results and (ours := result.trials) != (theirs := other.results[key].trials):
            notes.append(f"{' '.join(key)}: {counted(ours, 'trial')} a task in {a}, {theirs} in {b}")
    ours, theirs = _comparable(first.run.info().resolved, other.run.info().resolved)
    if differing := differing_settings(ours, theirs):
        notes += [f"settings that differ ({a} | {b}):", *(f"  {line}" for line in differing[:_SETTINGS_SHOWN])]
        more = len(differing) - _SETTINGS_SHOWN
        notes += [f"  and {more} more"] if more > 0 else []
    return notes


def _comparable(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Two recipes without what only one of them can have: [practice], and the modules of agents of two kinds."""
    if ("practice" in ours) != ("practice" in theirs):
        ours, theirs = ({key: value for key, value in side.items() if key != "practice"} for side in (ours, theirs))
    agents = [side.get("agent", {}) for side in (ours, theirs)]
    if agents[0].get("type") != agents[1].get("type"):
        loops = [{key: value for key, value in agent.items() if not isinstance(value, Mapping)} for agent in agents]
        ours, theirs = {**ours, "agent": loops[0]}, {**theirs, "agent": loops[1]}
    return ours, theirs
