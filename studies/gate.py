"""The study of the gate, on the simulated workshop: what it keeps in, what it keeps out, and what that costs.

Every run learns lessons of known worth (`midstream_worlds/workshop/tasks.py`), so its gain on the test
orders is exact, and only the worlds and the draws differ from seed to seed. It is compared with the method without a
gate, as the paper has it. Then the negative controls, in which nothing can be learned: how many runs accept any change?

Runs go side by side on all cores; each leaves a file in the study's directory, so that nothing is run twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.table import Table
from rich.text import Text

from midstream.core.data import Frozen
from midstream.core.task import Task
from midstream.core.terminal import Terminal
from midstream.lessons.commit import MadeUpdate
from midstream.lessons.feedback import LessonFeedback
from midstream.lessons.ledger import Ledger
from midstream.lessons.operations import Operation
from midstream.lessons.update import LessonLearner
from midstream.recipe.build import Build
from midstream.recipe.lesson_sessions import lessons_parts_of
from midstream.recipe.schema import load_recipe
from midstream.report.numbers import percent
from midstream.runs.budget import Budget, BudgetConfig
from midstream_extra.study import chosen
from midstream_extra.study_tables import t_interval
from midstream_worlds.workshop.tasks import Workshop
from studies.common import Job, parser, plain_table, reporter, results, run, workshop_recipe, write_json

HARMS = (0.0, 0.05, 0.1, 0.25)
OFF = ("lessons.gate.enabled=false",)
SMALL = (  # the controls need many runs, not large ones
    "lessons.tasks=20", "lessons.batch_size=20", "lessons.gate.test_pairs=128", "lessons.gate.bisect_pairs=64",
)  # fmt: skip
CONTROLS = {
    "shuffled rewards": ("lessons.shuffle_rewards=true",),
    "lessons without effect": ("tasks.help=0", "tasks.harm=0", "tasks.clutter=0"),
    "groups of one": ("lessons.group_size=1", "lessons.skip_uniform=false", "tasks.help=0"),  # guesses, of no use
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
        """How much the lesson set is worth."""
        return self.after - self.before


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; returns the exit code."""
    options = parser(__doc__ or "", out="runs/study-gate", recipe="lessons-simulated")
    return run(study_gate, options.parse_args(arguments))


def study_gate(options: argparse.Namespace) -> None:
    """Run what is missing, write the numbers, print the tables."""
    parts = chosen(PARTS, options.only)
    recipe = workshop_recipe(options)
    assert recipe.lessons is not None
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
        Terminal().print(control_table(record["controls"], recipe.lessons.gate.error_rate))


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
    return results(jobs, learned, Learned, report, what)


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


def learned(job: Job) -> Learned:
    """Learn a lesson set without a run directory, and say what it is worth."""
    budget = Budget(BudgetConfig())
    with Build(load_recipe(job.recipe, job.overrides), budget=budget) as build:
        made = asyncio.run(updates(build))
        world, tasks = test_orders(build)
        lesson_set = made[-1].lesson_set
        return Learned(
            before=world.mean_success(tasks, []),
            after=world.mean_success(tasks, [lesson.text for lesson in lesson_set.rendered]),
            best=world.mean_success(tasks, best_lessons(world, tasks)),
            lessons=len(lesson_set.rendered),
            accepted=sum(len(update.operations) for update in made),
            rollouts=budget.spent().rollouts,
        )


def test_orders(build: Build) -> tuple[Workshop, list[Task]]:
    """The world of a build, and the orders of its first evaluation set."""
    assert isinstance(build.source, Workshop)
    return build.source, build.set_tasks(build.recipe.evaluation.sets[0])


async def updates(build: Build, feedback: LessonFeedback | None = None) -> list[MadeUpdate]:
    """All updates of a run."""
    parts, ledger = lessons_parts_of(build), Ledger()
    lessons = LessonLearner(
        config=parts.lessons,
        tasks=parts.tasks,
        validation=parts.validation,
        environment=parts.make_environment(),
        gate_environment=parts.make_environment(chosen=parts.validation_set),
        engines=parts.engines,
        ledger=ledger,
        feedback=feedback,
        seed=parts.seed,
        identity=parts.identity,
        budget=parts.budget,
    )
    lesson_set, pending, found = parts.start, tuple[Operation, ...](), list[MadeUpdate]()
    for step in range(1, parts.lessons.updates + 1):
        made = await lessons.update(step, lesson_set, pending, step)
        lesson_set, pending = made.lesson_set, made.record.pending
        if feedback is not None:
            feedback.committed(made.record)
        found.append(made)
        ledger.clear()
    return found


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
