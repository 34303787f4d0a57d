"""The study of the gate, on the simulated workshop: what it keeps in, what it keeps out, and what that costs.

Every run learns a library with lessons of known worth (`worlds/workshop/tasks.py`), so its gain on the test orders is
exact, and only the worlds and the draws differ from seed to seed. It is compared with the method without a gate, as the
paper has it. Then the negative controls, in which nothing can be learned: how many runs accept any change?

Runs go side by side on all cores; each leaves a file in the study's directory, so that nothing is run twice.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import ValidationError
from rich.table import Table
from rich.text import Text

from midstream.core.data import Frozen
from midstream.core.errors import RecipeError
from midstream.core.task import Task
from midstream.core.terminal import Terminal
from midstream.recipe.build import Build
from midstream.recipe.check import check
from midstream.recipe.schema import load_recipe
from midstream.recipe.sessions import practice_parts_of
from midstream.report.evaluation_tables import plain_table
from midstream.report.numbers import percent, t_interval
from midstream.runs.budget import Budget, BudgetConfig
from midstream.runs.files import atomic_write
from midstream.study import chosen
from midstream.training_free.ledger import Ledger
from midstream.training_free.library import Library
from midstream.training_free.operations import Operation
from midstream.training_free.update import Practice
from midstream.worlds.workshop.tasks import Workshop
from studies.common import parser, reporter, require_set, run, write_json

HARMS = (0.0, 0.05, 0.1, 0.25)
OFF = ("practice.gate.enabled=false",)
SMALL = (  # the controls need many runs, not large ones
    "practice.tasks=20", "practice.batch_size=20", "practice.gate.test_pairs=128", "practice.gate.bisect_pairs=64",
)  # fmt: skip
CONTROLS = {
    "shuffled rewards": ("practice.shuffle_rewards=true",),
    "lessons without effect": ("tasks.help=0", "tasks.harm=0", "tasks.clutter=0"),
    "groups of one": ("practice.group_size=1", "practice.skip_uniform=false", "tasks.help=0"),  # guesses, of no use
    "hopeless orders": ("tasks.base=0", "tasks.spread=0", "tasks.help=0", "tasks.harm=0"),
}
PARTS = ("gate", "controls")


class Learned(Frozen):
    """Results of one run.

    `before`, `after` and `best` are the exact mean success on the test orders without lessons, with those learned, and
    with the best there are; `accepted` counts changes, `rollouts` those of learning and gate together.
    """

    before: float
    after: float
    best: float
    lessons: int
    accepted: int
    rollouts: int

    @property
    def gain(self) -> float:
        """How much the library is worth."""
        return self.after - self.before


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One run: a recipe with changes, and where its result lies."""

    recipe: str
    overrides: tuple[str, ...]
    root: Path

    @property
    def path(self) -> Path:
        """Named after everything that decides the result."""
        key = json.dumps(check(load_recipe(self.recipe, self.overrides)), sort_keys=True)
        return self.root / f"{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; returns the exit code."""
    options = parser(__doc__ or "", out="runs/study-gate", recipe="training-free-simulated")
    return run(study_gate, options.parse_args(arguments))


def study_gate(options: argparse.Namespace) -> None:
    """Run what is missing, write the numbers, print the tables."""
    parts = chosen(PARTS, options.only)
    recipe = load_recipe(options.recipe, options.overrides)
    if recipe.tasks.type != "workshop" or recipe.practice is None:
        raise RecipeError(
            f"recipe {recipe.name!r} does not practise in the simulated workshop",
            code="wrong-kind-of-recipe",
            cause="only there the worth of a lesson is known exactly",
            fix="name training-free-simulated, or a file that extends it",
        )
    require_set(recipe)
    report = reporter(options)
    record: dict[str, Any] = {"recipe": recipe.name, "seeds": options.seeds}
    if "gate" in parts:
        record["gate"] = _gate(options, report)
    if "controls" in parts:
        record["controls"] = _controls(options, report)
    write_json(options.out / f"gate-{recipe.name}.json", record)
    if options.json:
        print(json.dumps(record))
        return
    if "gate" in parts:
        Terminal().print(gate_table(record["gate"]))
    if "controls" in parts:
        Terminal().print(control_table(record["controls"], recipe.practice.gate.error_rate))


def _gate(options: argparse.Namespace, report: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row a harm and an arm."""
    rows: list[dict[str, Any]] = []
    for harm in HARMS:
        arms = {name: (f"tasks.harm={harm}", *more) for name, more in (("no gate", OFF), ("gate", ()))}
        found = {name: _runs(options, changes, report, f"harm {harm:g}, {name}") for name, changes in arms.items()}
        free = found["no gate"]
        for name, runs in found.items():
            rows.append({
                "harm": harm,
                "arm": name,
                "gains": [run.gain for run in runs],
                "possible": fmean(run.best - run.before for run in runs),
                "lessons": fmean(run.lessons for run in runs),
                "rollouts": fmean(run.rollouts for run in runs) / fmean(run.rollouts for run in free),
            })  # fmt: skip
    return rows


def _controls(options: argparse.Namespace, report: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row a control: in how many runs any change was accepted."""
    rows: list[dict[str, Any]] = []
    for name, changes in CONTROLS.items():
        runs = _runs(options, (*SMALL, *changes), report, name)
        accepted = sum(run.accepted > 0 for run in runs)
        rows.append({"control": name, "runs": len(runs), "accepted": accepted})
    return rows


def _runs(
    options: argparse.Namespace, changes: Iterable[str], report: Callable[[str], None], what: str
) -> list[Learned]:
    """One run a seed, each in a world of its own; read where it was made before."""
    seeds = [(f"seed={seed}", f"tasks.seed={seed}") for seed in range(options.seeds)]
    fixed = (*options.overrides, *changes)
    jobs = [Job(recipe=options.recipe, overrides=(*fixed, *seed), root=options.out) for seed in seeds]
    found = {job: _read(job) for job in jobs}
    missing = [job for job, learned in found.items() if learned is None]
    report(f"{what}: {len(missing)} of {len(jobs)} runs to make")
    if missing:
        options.out.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(min(os.cpu_count() or 1, len(missing)), mp_context=get_context("spawn")) as pool:
            for job, learned in zip(missing, pool.map(_make, missing), strict=True):
                found[job] = learned
    return [learned for learned in found.values() if learned is not None]


def _read(job: Job) -> Learned | None:
    try:
        return Learned.model_validate_json(job.path.read_bytes())
    except (FileNotFoundError, ValidationError):  # not there yet, or of an earlier version
        return None


def _make(job: Job) -> Learned:
    learned = practised(job.recipe, job.overrides)
    atomic_write(job.path, learned.model_dump_json().encode() + b"\n")
    return learned


def best_lessons(world: Workshop, tasks: Sequence[Task]) -> list[str]:
    """The most valuable lessons on these tasks.

    True lessons are added while they pay, the best first: exact as long as no order reaches `LEAST` or `MOST`, because
    effects then add up.
    """
    domains = {task.family for task in tasks}
    left = [rule.true for rule in world.rules if rule.domain in domains]
    chosen: list[str] = []
    worth = world.mean_success(tasks, chosen)
    while left:
        value, lesson = max((world.mean_success(tasks, [*chosen, lesson]), lesson) for lesson in left)
        if value <= worth:
            break
        chosen.append(lesson)
        left.remove(lesson)
        worth = value
    return chosen


def practised(name: str, overrides: Sequence[str]) -> Learned:
    """Learn a library without a run directory, and say what it is worth."""
    recipe = load_recipe(name, overrides)
    assert recipe.practice is not None
    budget = Budget(BudgetConfig())
    with Build(recipe, budget=budget) as build:
        library, accepted = asyncio.run(_practise(build))
        world, chosen = build.source, recipe.evaluation.sets[0]
        assert isinstance(world, Workshop)
        tasks = build.set_tasks(chosen)
        return Learned(
            before=world.mean_success(tasks, []),
            after=world.mean_success(tasks, [lesson.text for lesson in library.rendered]),
            best=world.mean_success(tasks, best_lessons(world, tasks)),
            lessons=len(library.rendered),
            accepted=accepted,
            rollouts=budget.spent().rollouts,
        )


async def _practise(build: Build) -> tuple[Library, int]:
    """All updates of a run, and how many changes were accepted."""
    parts, ledger = practice_parts_of(build), Ledger()
    practice = Practice(
        config=parts.practice,
        tasks=parts.tasks,
        validation=parts.validation,
        environment=parts.make_environment(),
        gate_environment=parts.make_environment(chosen=parts.validation_set),
        engines=parts.engines,
        ledger=ledger,
        seed=parts.seed,
        identity=parts.identity,
        budget=parts.budget,
    )
    library, pending, accepted = parts.start, tuple[Operation, ...](), 0
    for step in range(1, parts.practice.updates + 1):
        made = await practice.update(step, library, pending, step)
        library, pending, accepted = made.library, made.record.pending, accepted + len(made.operations)
        ledger.clear()
    return library, accepted


def gate_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A line a harm and an arm: the mean gain with its interval, the worst seed, shares and costs."""
    table = plain_table(Text("Exact gain on the test orders"))
    table.caption = "gain: mean over seeds ± half-width of the 95% Student t interval; rollouts: times those without"
    for head in ("harm", "arm", "gain", "worst", "< 0", "of best", "lessons", "rollouts"):
        table.add_column(head, justify="left" if head == "arm" else "right")
    for row in rows:
        gains = row["gains"]
        middle, half = t_interval(gains)
        spread = "" if half is None else f" ± {100 * half:.1f}"
        table.add_row(
            f"{row['harm']:g}",
            row["arm"],
            Text(f"{100 * middle:+.1f}{spread}", no_wrap=True),
            f"{100 * min(gains):+.1f}",
            f"{sum(gain < 0 for gain in gains)}/{len(gains)}",
            percent(fmean(gains) / row["possible"]) if row["possible"] else "-",
            f"{row['lessons']:.1f}",
            f"{row['rollouts']:.1f}x",
        )
    return table


def control_table(rows: Sequence[Mapping[str, Any]], error_rate: float) -> Table:
    """A line a control: in how many runs a change was accepted."""
    table = plain_table(Text("Where nothing can be learned"))
    table.caption = f"the gate's error rate: {percent(error_rate)} of runs"
    for head in ("control", "runs", "with an accepted change", "share"):
        table.add_column(head, justify="left" if head == "control" else "right")
    for row in rows:
        share = row["accepted"] / row["runs"]
        table.add_row(row["control"], str(row["runs"]), str(row["accepted"]), percent(share))
    return table


if __name__ == "__main__":
    sys.exit(main())
