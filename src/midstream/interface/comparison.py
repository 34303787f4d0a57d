"""Several evaluations against the first: which is better, by how much, how surely, and what to know about that."""

from __future__ import annotations

import string
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from midstream import api
from midstream.core.errors import UsageError
from midstream.core.html_table import html_table
from midstream.core.terminal import plain_text
from midstream.recipe.schema import differing_settings
from midstream.report.evaluation_tables import label
from midstream.report.numbers import counted, gain, gains, percent
from midstream.report.tables import compared_screen, effort_table, tool_share_table

_SETTINGS_SHOWN = 8


class Comparison(api.Comparison):
    """Every later run against the first; printed, it is the screen of `midstream compare`.

    found = compare(before, after).found[0]
    found.difference, found.interval, found.verdict
    """

    @cached_property
    def letters(self) -> dict[str, str]:
        """The letter of each run, by its name."""
        return {run.name: letter for run, letter in zip(self.runs, string.ascii_uppercase, strict=False)}

    @property
    def notes(self) -> list[str]:
        """What could not be compared, which runs are not finished, and what the runs do not share."""
        first, *others = self.runs
        notes = [f"not compared: {error.what}" + f" ({error.cause})" * bool(error.cause) for error in self.refused]
        for compared in self.runs:
            if (state := compared.run.status().state) != "finished":
                notes.append(f"{self.letters[compared.name]} is {state}: its results so far are compared")
        for other in others:
            notes += _differences(self.letters, first, other)
        return notes

    def screen(self, *, tasks: bool = False) -> Group:
        """What `midstream compare` shows; `tasks` lists the tasks that differ."""
        letters, parts = self.letters, list[RenderableType]()
        for compared in self.runs:
            resolved: Any = compared.run.info().resolved
            agent = resolved.get("agent", {})
            # The kind of agent, the template of an interleaved one, and the policies.
            words = [agent.get("type", ""), Path(str(agent.get("template", ""))).stem]
            policies = [label([result], "") for result in compared.results.values()]
            described = ", ".join(filter(None, [" ".join(filter(None, words)), *dict.fromkeys(policies)]))
            parts.append(Text(f"{letters[compared.name]}  {compared.name} ({described})"))
        parts += [Text(), compared_screen(letters, self.found, tasks=tasks)]
        for key in dict.fromkeys((paired.set_name, paired.sampling) for paired in self.found):
            sides = {letters[compared.name]: compared.results[key] for compared in self.runs if key in compared.results}
            parts += [Text(), effort_table(sides, f"{', '.join(key)}: what a task took")]
            several = [paired for paired in self.found if (paired.set_name, paired.sampling) == key and paired.tools]
            if several:
                parts.append(tool_share_table(letters, several, f"{', '.join(key)}: share of turns by tool"))
        if len(self.runs) > 2:
            parts.append(
                Text(
                    f"\nWith {len(self.runs) - 1} comparisons against {letters[self.runs[0].name]} each interval of "
                    "success is made wider (Bonferroni), so that all of them together hold in 95% of cases; those of "
                    "tools are not."
                )
            )
        if notes := self.notes:
            parts.append(Text("\n" + "\n".join(notes), "yellow"))
        return Group(*parts)

    def __str__(self) -> str:
        return plain_text(self.screen())

    def _repr_html_(self) -> str:
        rows = [
            {
                "compared": f"{self.letters[paired.other]} against {self.letters[paired.first]}",
                "set": f"{paired.set_name} {paired.sampling}",
                "tasks": paired.tasks,
                "before": percent(paired.first_success),
                "after": percent(paired.other_success),
                "difference": gain(paired.difference),
                "interval": gains(paired.interval),
                "verdict": paired.verdict,
            }
            for paired in self.found
        ]
        notes = [*(f"{letter}: {name}" for name, letter in self.letters.items()), *self.notes]
        return html_table(rows, notes)


def compare(*runs: api.Comparable) -> Comparison:
    """Compare evaluations of the same tasks with the first of them; `RUN@STEP` names another step than the last.

    Raises:
        RunError: one of them has no finished evaluation (at that step).
        UsageError: nothing can be compared, or there are too many.
    """
    if len(runs) > len(string.ascii_uppercase):
        raise UsageError(
            f"{len(runs)} evaluations are too many for one table",
            code="too-many",
            cause=f"each gets a letter, and there are {len(string.ascii_uppercase)}",
            fix="compare fewer at a time",
        )
    return Comparison(**vars(api.compare(*runs)))


def setting_notes(first: api.ComparedRun, other: api.ComparedRun, title: str) -> list[str]:
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
    return notes + setting_notes(first, other, f"settings that differ ({a} | {b}):")


def _comparable(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Two recipes without what changes no result, or what only one of them can have.

    These are the validation set, [practice], and the modules of agents of two kinds.
    """
    ours, theirs = (
        {**side, "evaluation": {key: value for key, value in side.get("evaluation", {}).items() if key != "validation"}}
        for side in (ours, theirs)
    )
    if ("practice" in ours) != ("practice" in theirs):
        ours, theirs = ({key: value for key, value in side.items() if key != "practice"} for side in (ours, theirs))
    agents = [side.get("agent", {}) for side in (ours, theirs)]
    if agents[0].get("type") != agents[1].get("type"):
        loops = [{key: value for key, value in agent.items() if not isinstance(value, Mapping)} for agent in agents]
        ours, theirs = {**ours, "agent": loops[0]}, {**theirs, "agent": loops[1]}
    return ours, theirs
