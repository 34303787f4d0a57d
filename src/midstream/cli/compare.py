"""`midstream compare A B [C ...]`: which of several evaluations of the same tasks is better, and how sure that is.

`midstream compare --group a=runs/a-* b=runs/b-*` compares groups of runs, such as the seeds of two recipes.
"""

from __future__ import annotations

import argparse
import json
import string
from collections.abc import Mapping, Sequence
from glob import glob, has_magic
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
from midstream.report.tables import (
    VERDICT_COLORS,
    compared_screen,
    effort_table,
    group_table,
    sentence,
    tool_share_table,
)

_SETTINGS_SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    parser.add_argument(
        "runs", nargs="*", metavar="RUN", help="evaluation or run directories, RUN@STEP for a step other than the last"
    )
    parser.add_argument(
        "--group", nargs="+", action="extend", default=[], metavar="NAME=RUNS", help="groups of runs, e.g. 'a=runs/a-*'"
    )
    parser.add_argument("--tasks", action="store_true", help="list the tasks that differ, with the answers")
    shared.add(parser, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Compare every later evaluation, or group, with the first, on each set and sampling that both have."""
    names = options.runs
    if (len(names) < 2 and not options.group) or (names and options.group):
        raise UsageError(
            f"{counted(len(names), 'run')} and {counted(len(options.group), 'group')} to compare",
            code="missing-option",
            fix="midstream compare RUN RUN, or midstream compare --group 'a=runs/a-*' 'b=runs/b-*'",
        )
    if options.group:
        return _compare_groups(options.group, as_json=options.json)
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


def _compare_groups(words: Sequence[str], *, as_json: bool) -> int:
    groups: dict[str, list[str]] = {}
    for word in words:
        name, _, pattern = word.partition("=")
        found = sorted(path for path in glob(pattern) if Path(path, "run.json").exists()) or [pattern]
        if not name or not pattern or (found == [pattern] and has_magic(pattern)):
            raise UsageError(
                f"--group {word!r} names no run",
                code="file-not-found",
                fix="give a name and run directories, e.g. --group 'small=runs/small-s*' 'large=runs/large-s*'",
            )
        groups.setdefault(name, []).extend(found)
    comparison, notes = api.compare_groups(groups), list[str]()
    heads = [runs[0] for runs in comparison.groups.values()]
    for name, runs in comparison.groups.items():
        for compared in runs:
            if (state := compared.run.status().state) != "finished":
                notes.append(f"{compared.name} is {state}: its results so far are compared")
            notes += _settings(runs[0], compared, f"{name} holds runs with other settings: {compared.name}")
    names = list(comparison.groups)
    for name, head in zip(names[1:], heads[1:], strict=True):
        notes += _settings(heads[0], head, f"settings that differ ({names[0]} | {name}):")
    letters = {name: name for name in names}
    if as_json:
        records = [{**pair.model_dump(), "said": sentence(letters, pair)} for pair in comparison.found]
        print(json.dumps({"compared": records, "notes": notes}))
        return 0
    console = Terminal()
    for key in dict.fromkeys((pair.set_name, pair.sampling) for pair in comparison.found):
        several = [pair for pair in comparison.found if (pair.set_name, pair.sampling) == key]
        console.print(group_table(several))
        for pair in several:
            console.print(
                Text(f"{sentence(letters, pair)}\n  {pair.method}", VERDICT_COLORS.get(pair.verdict or "", ""))
            )
        console.print()
    if notes:
        console.print(Text("\n".join(notes), "yellow"))
    return 0


def _settings(first: api.ComparedRun, other: api.ComparedRun, title: str) -> list[str]:
    """A title and the settings in which two runs differ, but for the seed; [] for none."""
    ours, theirs = _comparable(first.run.info().resolved, other.run.info().resolved)
    differing = [line for line in differing_settings(ours, theirs) if not line.startswith("seed: ")]
    more = len(differing) - _SETTINGS_SHOWN
    lines = [f"  {line}" for line in differing[:_SETTINGS_SHOWN]] + [f"  and {more} more"] * (more > 0)
    return [title, *lines] if lines else []


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
    return notes + _settings(first, other, f"settings that differ ({a} | {b}):")


def _comparable(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Two recipes without what only one of them can have: [practice], and the modules of agents of two kinds."""
    if ("practice" in ours) != ("practice" in theirs):
        ours, theirs = ({key: value for key, value in side.items() if key != "practice"} for side in (ours, theirs))
    agents = [side.get("agent", {}) for side in (ours, theirs)]
    if agents[0].get("type") != agents[1].get("type"):
        loops = [{key: value for key, value in agent.items() if not isinstance(value, Mapping)} for agent in agents]
        ours, theirs = {**ours, "agent": loops[0]}, {**theirs, "agent": loops[1]}
    return ours, theirs
