"""The study of the feedback filter, on the simulated workshop: what it holds back, and what it saves.

A project learns lessons several times in one world: each run begins without lessons, has tasks and draws of its own,
and ends with the gate's votes on what it tested. It is made twice, with the filter and without, so the votes of runs 1
to n - 1 decide what run n may propose. Of each lesson the worth is known
(`midstream_worlds/workshop/tasks.py`): a false one is harmful, a true one good.

    held back   of the proposals that passed all other checks, the share that the filter refused: harmful and good ones
    gain        exact, of the lesson set on the test orders
    rollouts    learning and gate; "to equal gain": until the lesson set is first worth what both arms reach in the end
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from rich.table import Table
from rich.text import Text

from midstream.core.data import Frozen
from midstream.core.terminal import Terminal
from midstream.lessons.commit import MadeUpdate
from midstream.recipe.build import Build
from midstream.recipe.schema import Recipe, load_recipe
from midstream.runs import RunDirectory
from midstream.runs.budget import Budget, BudgetConfig
from midstream_extra.study_tables import t_interval
from midstream_extra.votes import HELD_BACK, Votes
from midstream_worlds.workshop.tasks import Workshop
from studies.common import Job, parser, plain_table, reporter, results, run, workshop_recipe, write_json
from studies.gate import test_orders, updates

RUNS = 8  # of a project
SMALL = (  # many runs in a world of few and strong lessons, which a small gate can separate
    "tasks.rules=2", "tasks.reach=1", "tasks.base=0.4", "tasks.help=0.25", "tasks.harm=0.25", "tasks.share_true=0.3",
    "tasks.train=60", "tasks.validation=60", "tasks.test=100",
    "lessons.tasks=6", "lessons.batch_size=6", "lessons.group_size=3", "lessons.epochs=4",
    "lessons.gate.tasks=60", "lessons.gate.test_pairs=96", "lessons.gate.bisect_pairs=64",
)  # fmt: skip
FILTER = "lessons.feedback=.midstream/votes.sqlite"
ARMS = ("without", "with")


class LearnedRuns(Frozen):
    """One run: `gains` and `rollouts` (so far) after each update, and proposals that passed, or were held back."""

    gains: tuple[float, ...]
    rollouts: tuple[int, ...]
    harmful: int = 0
    harmful_held_back: int = 0
    good: int = 0
    good_held_back: int = 0

    def rollouts_to(self, gain: float) -> int:
        """Rollouts until the lesson set was first worth `gain`, 0 for the empty one."""
        worth = zip((0.0, *self.gains), (0, *self.rollouts), strict=True)
        return next((rollouts for value, rollouts in worth if value >= gain), self.rollouts[-1])


class Project(Frozen):
    """The runs of one project, in order, as a pair of arms: without the filter and with it."""

    runs: tuple[tuple[LearnedRuns, LearnedRuns], ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; returns the exit code."""
    options = parser(__doc__ or "", out="runs/study-feedback", recipe="lessons-simulated")
    return run(study_feedback, options.parse_args(arguments))


def study_feedback(options: argparse.Namespace) -> None:
    """Run what is missing, write the numbers, print the table."""
    recipe, report = workshop_recipe(options), reporter(options)
    overrides = [(*SMALL, *options.overrides, FILTER, f"tasks.seed={seed}") for seed in range(options.seeds)]
    jobs = [Job(recipe=options.recipe, overrides=each, root=options.out) for each in overrides]
    projects = results(jobs, learned, Project, report, "projects")
    rows = [compared(projects, part) for part in (slice(RUNS // 2), slice(RUNS // 2, RUNS))]
    record = {"recipe": recipe.name, "seeds": options.seeds, "rows": rows}
    write_json(options.out / f"feedback-{recipe.name}.json", record)
    if options.json:
        print(json.dumps(record))
    else:
        Terminal().print(feedback_table(rows))


def learned(job: Job) -> Project:
    """Learn `RUNS` times in one world, each time without the filter and with it; those with it share their votes.

    A run in which nothing was held back is the same without the filter, so it is made once.
    """
    runs = []
    with TemporaryDirectory() as directory:
        for number in range(RUNS):
            recipe = load_recipe(job.recipe, (*job.overrides, f"seed={number}"))
            # Only for the votes that an update began with: this run leaves no other files.
            run = RunDirectory(Path(directory, f"run-{number}"))
            run.ledger_dir.mkdir(parents=True)
            filtered = _run(recipe, Votes(Path(directory, "votes.sqlite"), run))
            changed = filtered.harmful_held_back or filtered.good_held_back
            runs.append((_run(recipe) if changed else filtered, filtered))
    return Project(runs=tuple(runs))


def _run(recipe: Recipe, votes: Votes | None = None) -> LearnedRuns:
    with Build(recipe, budget=Budget(BudgetConfig())) as build:
        return _measured(build, asyncio.run(updates(build, votes)))


def _measured(build: Build, made: Sequence[MadeUpdate]) -> LearnedRuns:
    world, tasks = test_orders(build)
    before = world.mean_success(tasks, [])
    counts = Counter[tuple[bool, bool]]()  # of proposals: harmful, held back
    for outcome in (outcome for update in made for outcome in update.record.proposed):
        held_back = outcome.refused.startswith(HELD_BACK)
        if outcome.operation.text and (held_back or not outcome.refused):
            counts[is_harmful(world, outcome.operation.text), held_back] += 1
    return LearnedRuns(
        gains=tuple(
            world.mean_success(tasks, [lesson.text for lesson in update.lesson_set.rendered]) - before
            for update in made
        ),
        rollouts=tuple(update.record.spent.rollouts for update in made),
        harmful=counts[True, False] + counts[True, True],
        harmful_held_back=counts[True, True],
        good=counts[False, False] + counts[False, True],
        good_held_back=counts[False, True],
    )


def is_harmful(world: Workshop, lesson: str) -> bool:
    """Whether a lesson lowers success: a false one does, and so does one that says nothing, as clutter."""
    return not world.meaning(lesson) or any(index for _, index in world.meaning(lesson))


def compared(projects: Sequence[Project], part: slice) -> dict[str, Any]:
    """Both arms of these runs of each project; every list has a value a project, of rollouts and gains the mean."""
    row: dict[str, Any] = {"runs": f"runs {(part.start or 0) + 1} to {part.stop}"}
    some = [project.runs[part] for project in projects]
    for side, arm in enumerate(ARMS):
        row[f"gain_{arm}"] = [fmean(pair[side].gains[-1] for pair in runs) for runs in some]
        row[f"rollouts_{arm}"] = [fmean(pair[side].rollouts[-1] for pair in runs) for runs in some]
        row[f"to_equal_gain_{arm}"] = [
            fmean(pair[side].rollouts_to(min(run.gains[-1] for run in pair)) for pair in runs) for runs in some
        ]
    for amount in ("harmful", "harmful_held_back", "good", "good_held_back"):
        row[amount] = [sum(getattr(run, amount) for _, run in runs) for runs in some]
    return row


def feedback_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A line an amount: its mean over projects with the half-width of the interval, for each part of the runs."""
    table = plain_table(Text("The feedback filter"))
    table.caption = "mean over projects ± half-width of the 95% Student t interval; saved: without minus with, paired"
    table.add_column("")
    for row in rows:
        table.add_column(row["runs"], justify="right")
    lines = {
        "harmful proposals held back": lambda row: _shares(row, "harmful"),
        "good proposals held back": lambda row: _shares(row, "good"),
        "gain without": lambda row: [100 * gain for gain in row["gain_without"]],
        "gain with": lambda row: [100 * gain for gain in row["gain_with"]],
        "rollouts without": lambda row: row["rollouts_without"],
        "rollouts saved": lambda row: _saved(row, "rollouts"),
        "to equal gain, without": lambda row: row["to_equal_gain_without"],
        "to equal gain, saved": lambda row: _saved(row, "to_equal_gain"),
    }
    for name, values in lines.items():
        table.add_row(name, *(_interval(values(row)) for row in rows))
    return table


def _shares(row: dict[str, Any], kind: str) -> list[float]:
    """The percentage that was held back, of each project with proposals of this kind."""
    return [100 * held / all_of for held, all_of in zip(row[f"{kind}_held_back"], row[kind], strict=True) if all_of]


def _saved(row: dict[str, Any], amount: str) -> list[float]:
    return [a - b for a, b in zip(row[f"{amount}_without"], row[f"{amount}_with"], strict=True)]


def _interval(values: Sequence[float]) -> Text:
    middle, half = t_interval(values)
    return Text(f"{middle:,.1f}" + ("" if half is None else f" ± {half:,.1f}"), no_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
