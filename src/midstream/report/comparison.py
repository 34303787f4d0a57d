"""Evaluations against the first, task by task, and groups of runs against the first group: which is better, how surely.

`Comparison` and `GroupComparison` hold the numbers, what to know about them, and the screens of `midstream compare`.
"""

from __future__ import annotations

import os
import string
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from midstream.core.errors import RunError, UsageError
from midstream.core.metrics import EvaluationResult
from midstream.core.terminal import plain_text
from midstream.core.text import html_table
from midstream.evaluation.pairs import Evaluated, GroupDifference, Member, Paired
from midstream.evaluation.pairs import compare as compare_pair
from midstream.evaluation.pairs import compare_groups as compare_two_groups
from midstream.report.evaluation_tables import label
from midstream.report.numbers import counted, gain, gains, percent
from midstream.report.run_results import evaluated_trajectories
from midstream.report.tables import (
    VERDICT_COLORS,
    compared_screen,
    effort_table,
    group_table,
    sentence,
    tool_share_table,
)
from midstream.runs import RunDirectory
from midstream.runs.info import differing_settings

_SETTINGS_SHOWN = 8

Comparable = RunDirectory | str | Path
"""A run, its path, or `RUN@STEP` for another step than the last evaluated."""


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A run in a comparison: the name it was given by, and its results by set and sampling.

    `refused` says which it has on tasks that the agent learned from: they are not among its `results`.
    """

    name: str
    run: RunDirectory
    results: Mapping[tuple[str, str], EvaluationResult]
    refused: Sequence[UsageError]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Every later run against the first; printed, it is the screen of `midstream compare`.

    found = compare(before, after).found[0]
    found.difference, found.interval, found.verdict

    `found` has every set and sampling that both have, `refused` why others are not compared.
    """

    runs: Sequence[ComparedRun]
    found: Sequence[Paired]
    refused: Sequence[UsageError]

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
            notes += _unfinished(compared, self.letters[compared.name])
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


@dataclass(frozen=True, kw_only=True)
class GroupComparison:
    """Groups of runs by name, and every later group against the first, on each set and sampling that all have."""

    groups: Mapping[str, Sequence[ComparedRun]]
    found: Sequence[GroupDifference]

    @property
    def letters(self) -> dict[str, str]:
        """What each group is called."""
        return {name: name for name in self.groups}

    @property
    def notes(self) -> list[str]:
        """What is left out, which runs are not finished or lost trials, and the settings and steps that differ."""
        refused = [error for runs in self.groups.values() for compared in runs for error in compared.refused]
        notes = [f"not compared: {error.what} ({error.cause})" for error in refused]
        for name, runs in self.groups.items():
            steps = {result.step: None for compared in runs for result in compared.results.values()}
            if len(steps) > 1:
                notes.append(f"{name} holds runs at several steps: {', '.join(map(str, steps))}")
            for compared in runs:
                notes += _unfinished(compared, compared.name)
                if errors := sum(result.errors for result in compared.results.values()):
                    lost = f"{counted(errors, 'trial')} lost to infrastructure errors count as wrong"
                    notes.append(f"{compared.name}: {lost}")
                notes += _setting_notes(runs[0], compared, f"{name} holds runs with other settings: {compared.name}")
        (first, [head, *_]), *others = self.groups.items()
        for other, runs in others:
            notes += _setting_notes(head, runs[0], f"settings that differ ({first} | {other}):")
        return notes

    def screen(self, *, tasks: bool = False) -> Group:
        """What `midstream compare --group` shows; groups are compared by their runs, so there are no `tasks`."""
        parts: list[RenderableType] = []
        for key in dict.fromkeys((pair.set_name, pair.sampling) for pair in self.found):
            several = [pair for pair in self.found if (pair.set_name, pair.sampling) == key]
            parts.append(group_table(several))
            for pair in several:
                said = f"{sentence(self.letters, pair)}\n  {pair.method}"
                parts.append(Text(said, VERDICT_COLORS.get(pair.verdict or "", "")))
            parts.append(Text())
        if notes := self.notes:
            parts.append(Text("\n".join(notes), "yellow"))
        return Group(*parts)


# --- what is compared -------------------------------------------------------------------------------------------------


def compare(*runs: Comparable) -> Comparison:
    """Compare evaluations of the same tasks with the first of them; `RUN@STEP` names another step than the last.

    Raises:
        RunError: one of them has no finished evaluation (at that step).
        UsageError: fewer than two runs, or too many; nothing can be compared.
    """
    if len(runs) < 2:
        raise UsageError(
            f"{len(runs)} runs to compare", code="missing-option", fix='name two, e.g. compare("runs/a", "runs/b")'
        )
    if len(runs) > len(string.ascii_uppercase):
        raise UsageError(
            f"{len(runs)} evaluations are too many for one table",
            code="too-many",
            fix="compare fewer at a time",
        )
    opened: list[ComparedRun] = []
    for run in runs:
        opened.append(_opened(run, {other.name for other in opened}))
    refused = [error for compared in opened for error in compared.refused]
    first, *others = opened
    for other in others:
        if not first.results.keys() & other.results.keys():
            for error in (*first.refused, *other.refused):
                raise error
            raise _nothing_shared(f"{first.name} and {other.name}", [first, other])
    found: list[Paired] = []
    for key in first.results:
        sides = [
            Evaluated(name=compared.name, result=result, trajectories=evaluated_trajectories(compared.run, result))
            for compared in opened
            if (result := compared.results.get(key))
        ]
        for side in sides[1:]:
            try:
                found.append(compare_pair(sides[0], side, comparisons=len(others)))
            except RunError:  # damaged trajectories
                raise
            except UsageError as error:
                refused.append(error)
    if not found:
        raise refused[0]
    return Comparison(runs=opened, found=found, refused=refused)


def compare_groups(groups: Mapping[str, Sequence[Comparable]]) -> GroupComparison:
    """Compare groups of runs, such as the seeds of two recipes, with the first group, on what all of them have.

    `groups` has the runs of each by its name. Groups with the same seeds are paired by seed.

    Raises:
        RunError: a run has no finished evaluation.
        UsageError: fewer than two groups, a run twice, or nothing that can be compared.
    """
    if len(groups) < 2 or not all(groups.values()):
        raise UsageError(
            f"{len(groups)} groups with {', '.join(str(len(runs)) for runs in groups.values()) or 'no'} runs",
            code="missing-option",
            fix="name two groups with a run each, e.g. --group 'a=runs/a-*' 'b=runs/b-*'",
        )
    opened = {name: list(map(_opened, runs)) for name, runs in groups.items()}
    every = [compared for runs in opened.values() for compared in runs]
    places = Counter(
        (os.path.realpath(compared.run.root), *(result.step for result in compared.results.values()))
        for compared in every
    )
    if twice := [path for (path, *_), count in places.items() if count > 1]:
        raise UsageError(f"{twice[0]} is named twice", code="name-clash", fix="name each run once, in one group")
    keys = [key for key in every[0].results if all(key in compared.results for compared in every)]
    if not keys:
        refused = [error for compared in every for error in compared.refused]
        raise refused[0] if refused else _nothing_shared("the runs", every)
    found: list[GroupDifference] = []
    for key in keys:
        members: list[tuple[str, list[Member]]] = []
        for name, runs in opened.items():
            members.append((name, []))
            for compared in runs:
                result, seed = compared.results[key], compared.run.info().seed
                trajectories = evaluated_trajectories(compared.run, result)
                tasks = frozenset((trajectory.question, trajectory.gold) for trajectory in trajectories)
                members[-1][1].append(Member(name=compared.name, seed=seed, result=result, tasks=tasks))
        first, *others = members
        found += [compare_two_groups(first, other, comparisons=len(others)) for other in others]
    return GroupComparison(groups=opened, found=found)


def split_step(named: str) -> tuple[str, str]:
    """`RUN@STEP` as path and step, "" for the last evaluated."""
    path, at, step = named.rpartition("@")
    return (path, step) if at and step.isdecimal() and not Path(named).exists() else (named, "")


def _opened(named: Comparable, taken: Collection[str] = ()) -> ComparedRun:
    """Open a run at a step, under a name that is not `taken`."""
    name = str(named.root if isinstance(named, RunDirectory) else named)
    path, wanted = split_step(name)
    while name in taken:
        name += " again"
    run = RunDirectory.open(Path(path))
    found = run.evaluations.read()
    steps = sorted({result.step for result in found if result.step is not None})
    at = {int(wanted)} if wanted else {None, *steps[-1:]}
    if chosen := [result for result in found if result.step in at]:
        results = {(result.set_name, result.sampling): result for result in chosen}
        learned = [results.pop(key) for key, result in list(results.items()) if result.learned]
        refused = [
            UsageError(
                f"{result.tasks:,} tasks of {result.set_name} {result.sampling} are left out: {name} learned from "
                f"them ({result.learned})",
                code="tasks-learned",
                cause="being better on what was learned from is no gain on new tasks",
                fix="compare on tasks that neither has seen",
            )
            for result in learned
        ]
        return ComparedRun(name=name, run=run, results=results, refused=refused)
    if wanted and found:
        raise RunError(
            f"{path} has no evaluation at step {wanted}",
            code="no-evaluation",
            cause=f"it was evaluated at {', '.join(map(str, steps)) or 'no step of a training run'}",
            fix="name one of these steps, or leave out @STEP",
        )
    raise RunError(
        f"{path} has no finished evaluation",
        code="no-evaluation",
        fix=f"midstream resume {path}, or midstream eval {path} if it is finished",
    )


def _nothing_shared(named: str, runs: Sequence[ComparedRun]) -> UsageError:
    return UsageError(
        f"{named} have no set and sampling in common",
        code="not-comparable",
        cause="; ".join(f"{compared.name} has {', '.join(map(' '.join, compared.results))}" for compared in runs),
        fix="evaluate all on the same set at the same temperature: midstream eval ... --temperature T",
    )


# --- notes ------------------------------------------------------------------------------------------------------------


def _unfinished(compared: ComparedRun, called: str) -> list[str]:
    state = compared.run.status().state
    return [] if state == "finished" else [f"{called} is {state}: its results so far are compared"]


def _setting_notes(first: ComparedRun, other: ComparedRun, title: str) -> list[str]:
    """A title and the settings in which two runs differ, but for the seed; [] for none."""
    ours, theirs = _comparable(first.run.info().resolved, other.run.info().resolved)
    differing = [line for line in differing_settings(ours, theirs) if not line.startswith("seed: ")]
    more = len(differing) - _SETTINGS_SHOWN
    lines = [f"  {line}" for line in differing[:_SETTINGS_SHOWN]] + [f"  and {more} more"] * (more > 0)
    return [title, *lines] if lines else []


def _differences(letters: Mapping[str, str], first: ComparedRun, other: ComparedRun) -> list[str]:
    """What the two do not share: sets, trials, settings of their recipes."""
    a, b = letters[first.name], letters[other.name]
    notes = []
    for has, lacks, letter, other_letter in ((first, other, a, b), (other, first, b, a)):
        alone = [" ".join(key) for key in has.results if key not in lacks.results]
        notes += [f"{letter} has {', '.join(alone)}, {other_letter} has not"] if alone else []
    for key, result in first.results.items():
        if key in other.results and (ours := result.trials) != (theirs := other.results[key].trials):
            notes.append(f"{' '.join(key)}: {counted(ours, 'trial')} a task in {a}, {theirs} in {b}")
    return notes + _setting_notes(first, other, f"settings that differ ({a} | {b}):")


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
