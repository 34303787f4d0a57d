"""Evaluations against the first, task by task, and groups of runs against the first group: which is better, how surely.

`Comparison` and `GroupComparison` hold the numbers and what to know about them; their `sections` are the blocks of
`midstream compare` and of the page of a comparison.
"""

from __future__ import annotations

import os
import re
import string
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from statistics import fmean

from midstream.core.errors import RunError, UsageError
from midstream.core.metrics import EvaluationResult
from midstream.core.terminal import plain_text
from midstream.evaluation.estimates import exact_interval
from midstream.evaluation.pairs import Evaluated, GroupDifference, Member, Paired, Preference
from midstream.evaluation.pairs import compare as compare_pair
from midstream.evaluation.pairs import compare_groups as compare_two_groups
from midstream.report import blocks
from midstream.report.blocks import Block, Cell, Section, interval_cell, span_of, text
from midstream.report.draw import draw
from midstream.report.evaluation import effort_table, evaluated_trajectories, label
from midstream.report.numbers import counted, gain, gains, number, percent, shorten
from midstream.runs import RunDirectory
from midstream.runs.feedback import read_choices
from midstream.runs.info import differing_settings

_SETTINGS_SHOWN = 8
_TEXT_LIMIT = 300
_ANSWERS_SHOWN = 4
VERDICT_TONES = {"better": "up", "worse": "down", "the same": "", "no evidence of a difference": "strong"}

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
            if cached := sum(result.replies_cached for result in compared.results.values()):
                words = counted(cached, "reply", "replies")
                notes.append(f"{self.letters[compared.name]} has {words} of an earlier evaluation (--cache)")
        a = self.letters[first.name]
        for other in others:
            b = self.letters[other.name]
            for has, lacks, letter, other_letter in ((first, other, a, b), (other, first, b, a)):
                alone = [" ".join(key) for key in has.results if key not in lacks.results]
                notes += [f"{letter} has {', '.join(alone)}, {other_letter} has not"] if alone else []
            for key, result in first.results.items():
                if key in other.results and (ours := result.trials) != (theirs := other.results[key].trials):
                    notes.append(f"{' '.join(key)}: {counted(ours, 'trial')} a task in {a}, {theirs} in {b}")
            notes += _setting_notes(first, other, f"settings that differ ({a} | {b}):")
        return notes

    @property
    def sections(self) -> list[Section]:
        """The results of every set, what a task took, what to know about them; tasks that differ are folded."""
        letters, named = self.letters, list[tuple[str, str]]()
        for compared in self.runs:
            policies = dict.fromkeys(label([result], "") for result in compared.results.values())
            named.append((letters[compared.name], f"{compared.name} ({', '.join(policies)})"))
        results, effort = list[Block | None](), list[Block | None]()
        for key in dict.fromkeys((paired.set_name, paired.sampling) for paired in self.found):
            several = [paired for paired in self.found if (paired.set_name, paired.sampling) == key]
            results += compared_blocks(letters, several)
            sides = {letters[compared.name]: compared.results[key] for compared in self.runs if key in compared.results}
            effort += [
                effort_table(sides, f"{', '.join(key)}: what a task took"),
                tool_share_table(letters, [paired for paired in several if paired.tools]),
            ]
        if len(self.runs) > 2:
            words = "Intervals of success are wider (Bonferroni), so that all of them together hold in 95% of cases"
            effort.append(text(f"{words}; those of tools are not."))
        return [
            ("compared", "Compared", [blocks.facts(named)]),
            ("results", "Results", results),
            ("preference", "What a person preferred", [text(preference(letters, pair)) for pair in self.found]),
            ("details", "What it took", effort),
            ("notes", "To know", [text("\n".join(self.notes), "warn")]),
        ]

    def __str__(self) -> str:
        return plain_text(draw(shown(self)))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


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
        notes = [f"not compared: {error.what}" for error in refused]
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

    @property
    def sections(self) -> list[Section]:
        """The results of every set, and what to know about them; groups are compared by their runs, not by tasks."""
        found: list[Block | None] = []
        for key in dict.fromkeys((pair.set_name, pair.sampling) for pair in self.found):
            several = [pair for pair in self.found if (pair.set_name, pair.sampling) == key]
            found.append(group_table(several))
            for pair in several:
                words = f"{sentence(self.letters, pair)}\n  {pair.method}"
                found.append(text(words, VERDICT_TONES.get(pair.verdict or "", "")))
        return [("results", "Results", found), ("notes", "To know", [text("\n".join(self.notes), "warn")])]


def shown(comparison: Comparison | GroupComparison) -> list[Block | None]:
    """All of a comparison, for the terminal."""
    return [block for _, _, found in comparison.sections for block in found]


def comparison_page(comparison: Comparison | GroupComparison) -> Block:
    """The page of a comparison; its lead has every verdict."""
    letters = comparison.letters
    verdicts = (f"{sentence(letters, pair)}, on {pair.set_name} {pair.sampling}." for pair in comparison.found)
    return blocks.page(" and ".join(letters), " ".join(verdicts), comparison.sections)


# --- what is compared -------------------------------------------------------------------------------------------------


def compare(*runs: Comparable) -> Comparison:
    """Compare evaluations of the same tasks with the first of them; `RUN@STEP` names another step than the last.

    Raises:
        RunError: one of them has no finished evaluation (at that step).
        UsageError: fewer than two runs, or too many; nothing can be compared.
    """
    if not 2 <= len(runs) <= len(string.ascii_uppercase):
        fix = 'name 2 to 26, e.g. compare("runs/a", "runs/b")'
        raise UsageError(f"{counted(len(runs), 'run')} to compare", code="missing-option", fix=fix)
    opened: list[ComparedRun] = []
    for run in runs:
        opened.append(open_compared(run, {other.name for other in opened}))
    refused = [error for compared in opened for error in compared.refused]
    first, *others = opened
    for other in others:
        if not first.results.keys() & other.results.keys():
            nothing = _nothing_shared(f"{first.name} and {other.name}", [first, other])
            raise [*first.refused, *other.refused, nothing][0]
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
    named = {compared.name: compared for compared in opened}
    chosen = ({"preference": _preference(named[pair.first], named[pair.other], pair)} for pair in found)
    found = [pair.model_copy(update=preferred) for pair, preferred in zip(found, chosen, strict=True)]
    return Comparison(runs=opened, found=found, refused=refused)


def differing_answers(first: ComparedRun, other: ComparedRun, key: tuple[str, str]) -> list[tuple[str, str, str]]:
    """Question, answer of `other` and of `first` where they differ ("" for none), on a set and sampling.

    Of each task the last run counts that ended without an error; a task of which a side has none is left out.
    """
    ours, theirs = (
        {
            trial.task_id: (trial.question, trial.answer or "")
            for trial in evaluated_trajectories(compared.run, compared.results[key])
            if trial.status == "ok"
        }
        for compared in (first, other)
    )
    both = ((ours[task], theirs[task]) for task in ours if task in theirs)
    return [(asked, that, this) for (asked, this), (again, that) in both if asked == again and this != that]


def _preference(first: ComparedRun, other: ComparedRun, pair: Paired) -> Preference | None:
    """Count what people chose; None if nobody chose between answers of these two."""
    choices = read_choices(first.run.root, other.run.root)
    asked = differing_answers(first, other, (pair.set_name, pair.sampling)) if choices else []
    votes = Counter(choices.get(each) for each in asked)
    decided, equal = votes["up"] + votes["down"], votes["equal"]
    interval = exact_interval(votes["up"], decided, 1 - pair.level)
    found = Preference(preferred=votes["up"], decided=decided, equal=equal, asked=len(asked), interval=interval)
    return found if decided + equal else None


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
    opened = {name: list(map(open_compared, runs)) for name, runs in groups.items()}
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
        raise [*refused, _nothing_shared("the runs", every)][0]
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


def open_compared(named: Comparable, taken: Collection[str] = ()) -> ComparedRun:
    """Open a run at a step, under a name that is not `taken`."""
    name = str(named.root if isinstance(named, RunDirectory) else named)
    path, wanted = split_step(name)
    while name in taken:
        name += " again"
    run = RunDirectory.open(Path(path))
    found = run.evaluations.read()
    steps = sorted({result.step for result in found if result.step is not None})
    at = {int(wanted)} if wanted else {None, *steps[-1:]}
    chosen = [result for result in found if result.step in at]
    if not chosen:
        raise RunError(
            f"{path} has no finished evaluation" + (f" at step {wanted}" if wanted else ""),
            code="no-evaluation",
            cause=f"it was evaluated at {', '.join(map(str, steps))}" if steps else "",
            fix=f"name one of these steps, or midstream resume {path}, or midstream eval {path} if it is finished",
        )
    refused = [
        UsageError(
            f"{result.tasks:,} tasks of {result.set_name} {result.sampling} are left out: {name} learned from "
            f"them ({result.learned})",
            code="tasks-learned",
            fix="compare on tasks that neither has seen",
        )
        for result in chosen
        if result.learned
    ]
    results = {(result.set_name, result.sampling): result for result in chosen if not result.learned}
    return ComparedRun(name=name, run=run, results=results, refused=refused)


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
    """A title and the settings in which two runs differ; [] for none.

    Left out is what changes no result, and what only one of them can have: lessons, the modules of another agent.
    """
    ours, theirs = (compared.run.info().resolved for compared in (first, other))
    ignored = ["seed:", "evaluation.validation"]
    if ("lessons" in ours) != ("lessons" in theirs):
        ignored.append("lessons")
    differing = [line for line in differing_settings(ours, theirs) if not line.startswith(tuple(ignored))]
    if any(line.startswith("agent.type:") for line in differing):
        differing = [line for line in differing if not re.match(r"agent\.\w+\.", line)]
    more = len(differing) - _SETTINGS_SHOWN
    lines = [f"  {line}" for line in differing[:_SETTINGS_SHOWN]] + [f"  and {more} more"] * (more > 0)
    return [title, *lines] if lines else []


# --- blocks -----------------------------------------------------------------------------------------------------------


def sentence(letters: Mapping[str, str], pair: Paired | GroupDifference) -> str:
    """The verdict in words: "B is better than A by 3.2 points (95% interval 1.1 to 5.3)"."""
    first, other = letters[pair.first], letters[pair.other]
    if pair.interval is None:
        return f"{other} has {gain(pair.difference)} points against {first}"
    if pair.verdict == "the same":
        return f"{other} and {first} are the same: every turn of every task is equal"
    level = f"{pair.level * 100:.4g}%"
    if pair.verdict == "no evidence of a difference":
        between = f"{level} interval {gains(pair.interval)}"
        return f"{other} and {first}: no evidence of a difference ({gain(pair.difference)} points, {between})"
    # "Better by" and "worse by" both take positive numbers, smallest first.
    low, high = sorted(abs(end) * 100 for end in pair.interval)
    points = f"{abs(pair.difference) * 100:.1f} points ({level} interval {low:.1f} to {high:.1f})"
    return f"{other} is {pair.verdict} than {first} by {points}"


def preference(letters: Mapping[str, str], pair: Paired) -> str:
    """What a person preferred, in words; "" if nobody was asked."""
    if (found := pair.preference) is None:
        return ""
    first, other, (low, high) = letters[pair.first], letters[pair.other], found.interval
    verdict = f"{other} is preferred" if low > 0.5 else f"{first} is preferred" if high < 0.5 else "undecided"
    interval = f"exact {pair.level * 100:.4g}% interval {percent(low)} to {percent(high)}"
    return (
        f"{pair.set_name}, {pair.sampling}: a person preferred {other} to {first} on {found.preferred:,} of "
        f"{counted(found.decided, 'task')} ({interval}): {verdict}. {found.equal:,} equal, "
        f"{found.asked - found.decided - found.equal:,} not judged. A person's preference, not the reward."
    )


def compared_blocks(letters: Mapping[str, str], several: Sequence[Paired]) -> list[Block | None]:
    """One set and sampling: success on the tasks that both sides have a result of, the verdicts, what is left out."""
    head = several[0]
    span = span_of((pair.difference, pair.interval) for pair in several)
    rows: list[list[Cell]] = []
    shown = None
    for pair in several:
        # The first run again, where other tasks have a result on both sides.
        if (pair.tasks, pair.first_success) != shown:
            shown = pair.tasks, pair.first_success
            rows.append([letters[pair.first], str(pair.tasks), percent(pair.first_success), *[""] * 5])
        rows.append(
            [
                letters[pair.other],
                str(pair.tasks),
                percent(pair.other_success),
                blocks.cell(gain(pair.difference), VERDICT_TONES[pair.verdict]),
                "-" if pair.verdict == "the same" else interval_cell(pair.difference, pair.interval, span),
                *map(str, (pair.wins, pair.losses, pair.ties)),
            ]
        )
    level = f"{head.level * 100:.4g}% interval"
    heads = ("", "tasks", "success", f"against {letters[head.first]}", level, "won", "lost", "tied")
    found = [blocks.table(f"{head.set_name}, {head.sampling}: {head.metric}", heads, rows)]
    for pair in several:
        found.append(text(sentence(letters, pair), VERDICT_TONES[pair.verdict]))
        left_out = [
            (pair.left_out, "task", "left out: no result on one side (infrastructure errors)"),
            (pair.runs_left_out, "run", "of the others left out: no result (infrastructure errors)"),
        ]
        for count, side in ((pair.only_first, pair.first), (pair.only_other, pair.other)):
            they = "it" if count == 1 else "them"
            left_out.append((count, "task", f"left out: only {letters[side]} has {they}"))
        found += [text(f"  {counted(count, noun)} {why}", "warn") for count, noun, why in left_out if count]
    return found + [differing_tasks(letters, pair) for pair in several]


def differing_tasks(letters: Mapping[str, str], compared: Paired) -> Block | None:
    """The tasks that only one side solves, or solves more often, with the answers of both."""
    found: list[Block | None] = []
    for pair in sorted(compared.differing, key=lambda pair: -pair.difference):
        won = letters[compared.other if pair.difference > 0 else compared.first]
        found.append(text(f"{won} is better on {pair.task_id}: {shorten(pair.question, _TEXT_LIMIT)}"))
        rows = [("gold", shorten(pair.gold or "-", _TEXT_LIMIT))]
        for name, side in ((compared.first, pair.first), (compared.other, pair.other)):
            answers = ["(none)" if a is None else shorten(a, _TEXT_LIMIT) for a in dict.fromkeys(side.answers)]
            more = f" | {len(answers) - _ANSWERS_SHOWN} more" if len(answers) > _ANSWERS_SHOWN else ""
            rows.append((letters[name], f"{number(side.value)}  {' | '.join(answers[:_ANSWERS_SHOWN])}{more}"))
        found.append(blocks.facts(rows))
    return blocks.fold(f"Tasks that {letters[compared.first]} and {letters[compared.other]} differ on", *found)


def tool_share_table(letters: Mapping[str, str], several: Sequence[Paired]) -> Block | None:
    """The share of turns that went to each tool, the first evaluation's and the others', with their differences."""
    if not several:
        return None
    head, heads = several[0], ["tool", letters[several[0].first]]
    for pair in several:
        heads += [letters[pair.other], f"against {letters[pair.first]}", "95% interval"]
    span = span_of((shift.other - shift.first, shift.interval) for pair in several for shift in pair.tools.values())
    shares = {name: shift.other for pair in reversed(several) for name, shift in pair.tools.items()}
    rows: list[list[Cell]] = []
    for name in sorted(shares, key=lambda name: (-shares[name], name)):
        cells: list[Cell] = [name, percent(head.tools[name].first if name in head.tools else 0.0)]
        for pair in several:
            shift = pair.tools.get(name)
            difference = shift.other - shift.first if shift else 0.0
            cells += [percent(shift.other if shift else 0.0), gain(difference)]
            cells.append(interval_cell(difference, shift.interval if shift else None, span))
        rows.append(cells)
    return blocks.table(f"{head.set_name}, {head.sampling}: share of turns by tool", heads, rows)


def group_table(several: Sequence[GroupDifference]) -> Block | None:
    """Mean success of the first group and of each other over their runs, and each run's own."""
    head = several[0]
    span = span_of((pair.difference, pair.interval) for pair in several if pair.interval)
    rows: list[list[Cell]] = []

    def add(name: str, values: Sequence[float], difference: Cell = "", interval: Cell = "") -> None:
        each = "  ".join(percent(value).removesuffix("%") for value in values)
        rows.append([name, str(len(values)), percent(fmean(values)), difference, interval, each])

    add(head.first, head.first_values)
    for pair in several:
        interval = interval_cell(pair.difference, pair.interval, span)
        tone = VERDICT_TONES.get(pair.verdict or "", "")
        add(pair.other, pair.other_values, blocks.cell(gain(pair.difference), tone), interval)
    level = f"{head.level * 100:.4g}% interval"
    heads = ("group", "runs", "success", f"against {head.first}", level, "of each, by seed")
    return blocks.table(f"{head.set_name}, {head.sampling}: {head.metric}", heads, rows, last=1)
