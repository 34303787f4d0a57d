"""`midstream compare A B [C ...]`: which of several evaluations of the same tasks is better, and how sure that is."""

from __future__ import annotations

import argparse
import json
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from midstream.cli.results import evaluated_trajectories
from midstream.core.errors import RunError, UsageError
from midstream.core.metrics import EvaluationResult
from midstream.evaluation.pairs import Evaluated, Paired, compare
from midstream.recipe.schema import differing_settings
from midstream.report.numbers import counted, visible
from midstream.report.paired import compared_screen, effort_table, sentence
from midstream.runs import RunDirectory

Key = tuple[str, str]  # set and sampling
_SETTINGS_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class _Directory:
    """One argument: its run, and the results of the step that is compared."""

    name: str
    run: RunDirectory
    results: Mapping[Key, EvaluationResult]

    def evaluated(self, key: Key) -> Evaluated:
        result = self.results[key]
        return Evaluated(name=self.name, result=result, trajectories=evaluated_trajectories(self.run, result))


def run_compare(options: argparse.Namespace) -> int:
    """Compare every later evaluation with the first, on each set and sampling that both have."""
    arguments = [options.first, *options.others]
    if len(arguments) > len(string.ascii_uppercase):
        raise UsageError(
            f"{len(arguments)} evaluations are too many for one table",
            cause=f"each gets a letter, and there are {len(string.ascii_uppercase)}",
            fix="compare fewer at a time",
        )
    directories: list[_Directory] = []
    for argument in arguments:
        directories.append(_open(argument, {one.name for one in directories}))
    letters = dict(zip((one.name for one in directories), string.ascii_uppercase, strict=False))
    first, others = directories[0], directories[1:]
    for other in others:
        if not any(key in other.results for key in first.results):
            raise _nothing_shared(first, other)
    found, refused = _compared(first, others)
    notes = [f"not compared: {error.what} ({error.cause})" for error in refused]
    notes += [
        f"{letters[one.name]} is {state}: what it has so far is compared"
        for one in directories
        if (state := one.run.status().state) != "finished"
    ]
    notes += [note for other in others for note in _notes(letters, first, other)]
    if options.json:
        print(json.dumps({"compared": [_record(letters, one, options.tasks) for one in found], "notes": notes}))
    else:
        _show(letters, directories, found, notes, tasks=options.tasks)
    return 0


def _compared(first: _Directory, others: Sequence[_Directory]) -> tuple[list[Paired], list[UsageError]]:
    """Every set and sampling that two have, and what is wrong with those whose difference would mean nothing.

    Raises:
        UsageError: nothing is left to compare.
    """
    found: list[Paired] = []
    refused: list[UsageError] = []
    for key in first.results:
        if with_it := [other for other in others if key in other.results]:
            ours = first.evaluated(key)
            for other in with_it:
                try:
                    found.append(compare(ours, other.evaluated(key), comparisons=len(others)))
                except UsageError as error:
                    refused.append(error)
    if not found:
        raise refused[0]
    return found, refused


def _open(argument: str, taken: Collection[str]) -> _Directory:
    """`RUN` at its last evaluated step, or `RUN@STEP`, under a name that is not `taken`."""
    path, at, wanted = argument.rpartition("@")
    if not at or Path(argument).exists() or not wanted.isdecimal():
        path, wanted = argument, ""
    name = argument
    while name in taken:
        name += " again"
    run = RunDirectory.open(Path(path))
    results = run.evaluations.read()
    steps = sorted({one.step for one in results if one.step is not None})
    compared = {int(wanted)} if wanted else {None, *steps[-1:]}
    chosen = {(one.set_name, one.sampling): one for one in results if one.step in compared}
    if chosen:
        return _Directory(name=name, run=run, results=chosen)
    if wanted and results:
        raise RunError(
            f"{path} has no evaluation at step {wanted}",
            cause=f"it was evaluated at {', '.join(map(str, steps)) or 'no step of a training run'}",
            fix="name one of these steps, or leave out @STEP",
        )
    raise RunError(
        f"{path} has no finished evaluation",
        cause="it was interrupted before its first set was done, or holds none",
        fix=f"midstream resume {path}",
    )


def _nothing_shared(first: _Directory, other: _Directory) -> UsageError:
    def said(one: _Directory) -> str:
        return ", ".join(f"{name} {sampling}" for name, sampling in one.results)

    return UsageError(
        f"{first.name} and {other.name} have no set and sampling in common",
        cause=f"one has {said(first)}, the other {said(other)}",
        fix="evaluate both on the same set at the same temperature: midstream eval ... --temperature T",
    )


def _notes(letters: Mapping[str, str], first: _Directory, other: _Directory) -> list[str]:
    """What the two do not share: sets, trials, settings of their recipes."""
    a, b = letters[first.name], letters[other.name]
    notes = []
    for here, there, has, lacks in ((first, other, a, b), (other, first, b, a)):
        alone = [f"{name} {sampling}" for name, sampling in here.results if (name, sampling) not in there.results]
        notes += [f"{has} has {', '.join(alone)}, {lacks} has not"] if alone else []
    for key, result in first.results.items():
        if key in other.results and (ours := result.trials) != (theirs := other.results[key].trials):
            notes.append(f"{' '.join(key)}: {counted(ours, 'trial')} a task in {a}, {theirs} in {b}")
    differing = differing_settings(*_comparable(first.run.info().resolved, other.run.info().resolved))
    if differing:
        notes += [f"settings that differ ({a} | {b}):", *(f"  {line}" for line in differing[:_SETTINGS_SHOWN])]
        more = len(differing) - _SETTINGS_SHOWN
        notes += [f"  and {more} more"] if more > 0 else []
    return notes


def _comparable(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Without what only one of the two can have.

    That is how lessons were learned, where one learned none (it may well have them too), and the modules of agents of
    two kinds.
    """
    if ("practice" in ours) != ("practice" in theirs):
        ours, theirs = ({key: value for key, value in each.items() if key != "practice"} for each in (ours, theirs))
    agents = [each.get("agent", {}) for each in (ours, theirs)]
    if agents[0].get("type") != agents[1].get("type"):
        ours, theirs = ({**each, "agent": _loop(agent)} for each, agent in zip((ours, theirs), agents, strict=True))
    return ours, theirs


def _loop(agent: Mapping[str, Any]) -> Mapping[str, Any]:
    """An agent's settings without its modules'."""
    return {key: value for key, value in agent.items() if not isinstance(value, Mapping)}


def _record(letters: Mapping[str, str], one: Paired, tasks: bool) -> dict[str, Any]:
    record = one.model_dump(exclude=None if tasks else {"differing"})
    return {**record, "said": sentence(letters, one)}


def _show(
    letters: Mapping[str, str],
    directories: Sequence[_Directory],
    found: Sequence[Paired],
    notes: Sequence[str],
    *,
    tasks: bool,
) -> None:
    console = Console()
    for one in directories:
        policies = ", ".join(dict.fromkeys(_policy(result) for result in one.results.values()))
        agent = _agent(one.run.info().resolved)
        console.print(Text(visible(f"{letters[one.name]}  {one.name} ({', '.join(filter(None, [agent, policies]))})")))
    console.print()
    console.print(compared_screen(letters, found, tasks=tasks))
    for set_name, sampling in dict.fromkeys((one.set_name, one.sampling) for one in found):
        sides = {letters[one.name]: result for one in directories if (result := one.results.get((set_name, sampling)))}
        console.print()
        console.print(effort_table(sides, f"{set_name}, {sampling}: what a task took"))
    if len(directories) > 2:
        console.print(
            f"\nWith {len(directories) - 1} comparisons against {letters[directories[0].name]} each interval is made "
            "wider (Bonferroni), so that all of them together hold in 95% of cases."
        )
    if notes:
        console.print(Text(visible("\n" + "\n".join(notes)), "yellow"))


def _agent(resolved: Mapping[str, Any]) -> str:
    """The kind of agent, of an interleaved one its template too; "" where the recipe is not known."""
    agent = resolved.get("agent", {})
    return " ".join(filter(None, [agent.get("type", ""), Path(str(agent.get("template", ""))).stem]))


def _policy(result: EvaluationResult) -> str:
    return result.policy + (f", step {result.step}" if result.step is not None else "")
