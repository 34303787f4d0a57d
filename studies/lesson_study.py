"""The study of a lesson set: the analyses of the Training-Free GRPO paper on one recipe, over seeds (arXiv 2510.08191).

    arms       the recipe, the same without the gate, with the majority's answer for the gold one, without any grade,
               with lessons written without any rollout, and with other group sizes: success before and after, gain,
               what it cost
    tools      turns a rollout by epoch, while the lesson set learns
    transfer   lesson sets learned in one domain (a family of tasks) each, on every domain

Every arm is a run of its own in the study's directory. Nothing is run twice. In the workshop the worth of lessons has
a closed form: "exact gain" is what its lessons add to the probability of success on the same tasks, without the noise
of the evaluation, and "of the best" its share of what the best lesson set adds.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from midstream import api
from midstream.core.errors import RecipeError
from midstream.core.metrics import EvaluationResult
from midstream.lessons.commit import History, UpdateRecord, read_updates
from midstream.recipe.build import Build
from midstream.recipe.check import task_source
from midstream.recipe.files import merge, read_table, with_overrides
from midstream.recipe.schema import Recipe, parse_recipe
from midstream.runs import RunDirectory
from midstream_extra.study import chosen
from midstream_extra.study_tables import StudyRow
from midstream_worlds.workshop.tasks import Workshop
from studies.common import parser, print_tables, records, reporter, require_set, run, write_json
from studies.gate import best_lessons

LEARNED = "the recipe"
ARMS: Mapping[str, Mapping[str, Any]] = {
    LEARNED: {},
    "without the gate": {"gate": {"enabled": False}},
    "majority, no answers": {"truth": "majority"},
    "no grades, no answers": {"truth": "none"},
    "lessons without rollouts": {"lessons_from": "model"},
    "group of 1": {"group_size": 1, "skip_uniform": False},
    "group of 2": {"group_size": 2},
    "group of 8": {"group_size": 8},
}
ALL = "all domains"


@dataclass(frozen=True, kw_only=True)
class LessonStudy:
    """A study on disk: its recipe, its arms' runs in `root`; `report` receives what is done now."""

    root: Path
    named: str
    overrides: tuple[str, ...]
    seeds: int
    report: Callable[[str], None]
    _runs: dict[str, RunDirectory] = field(default_factory=dict)

    def recipe(self, arm: str, seed: int, changes: Mapping[str, Any]) -> Recipe:
        """The recipe under a seed with the changes of an arm."""
        table = with_overrides(read_table(self.named), [*self.overrides, f"seed={seed}"])
        if "lessons" not in table:
            raise RecipeError(
                f"recipe {table.get('name')!r} learns no lessons",
                code="wrong-kind-of-recipe",
                fix="name a recipe that learns lessons, e.g. lessons-domains",
            )
        name = f"{table['name']}-{arm.replace(' ', '-').replace(',', '')}"
        recipe = parse_recipe(merge(table, {"name": name, **changes}))
        require_set(recipe)
        return recipe

    def run(self, arm: str, seed: int, changes: Mapping[str, Any]) -> RunDirectory:
        """The finished run of an arm, made now if it was not."""
        recipe = self.recipe(arm, seed, changes)
        name = f"{recipe.name}-s{seed}"
        if name not in self._runs:
            self.report(f"{name}: learning, unless that is done")
            self._runs[name] = api.train(recipe, out=self.root / name, exist_ok=True).directory
        return self._runs[name]

    def worth(self, run: RunDirectory, domain: str = "") -> tuple[float, float] | None:
        """What a run's lesson set adds to the exact probability of success, and what the best lesson set adds.

        Both are means over the first evaluation set's tasks, those of `domain` if one is named. None where the tasks
        are not the workshop's.
        """
        recipe = parse_recipe(run.info().resolved)
        with Build(recipe) as build:
            world, tasks = build.source, build.set_tasks(recipe.evaluation.sets[0])
        if not isinstance(world, Workshop):
            return None
        tasks = [task for task in tasks if domain in ("", task.family)]
        lessons = [lesson.text for lesson in History(run.lessons_dir).get().lesson_set.rendered]
        without = world.mean_success(tasks, [])
        gains = [world.mean_success(tasks, held) - without for held in (lessons, best_lessons(world, tasks))]
        return gains[0], gains[1]

    def domains(self) -> list[str]:
        """The families of the recipe's tasks; `RecipeError` where there is only one."""
        domains = list(task_source(self.recipe(LEARNED, 0, {}).tasks).families)
        if len(domains) < 2:
            raise RecipeError(
                f"the tasks of recipe {self.named!r} are of {len(domains)} family",
                code="setting-conflict",
                cause="transfer is from one domain, a family of tasks, to another",
                fix="choose a recipe with several families, or name other analyses with --only",
            )
        asked = self.recipe(LEARNED, 0, {}).evaluation.sets[0].families
        if asked and (missing := [domain for domain in domains if domain not in asked]):
            raise RecipeError(
                f"the first evaluation set does not ask {missing[0]!r}",
                code="setting-conflict",
                cause="transfer is measured on every family of the tasks",
                fix="leave out its families, or limit [tasks] families to those of the set",
            )
        return domains


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; returns the exit code."""
    options = parser(__doc__ or "", out="runs/study-lessons", recipe="lessons-domains")
    return run(study_lessons, options.parse_args(arguments))


def study_lessons(options: argparse.Namespace) -> None:
    """Run what is missing, analyze, write the numbers, print a table an analysis."""
    study = LessonStudy(
        root=options.out,
        named=options.recipe,
        overrides=tuple(options.overrides),
        seeds=options.seeds,
        report=reporter(options),
    )
    names = chosen(tuple(ANALYSES), options.only)
    if "transfer" in names:
        study.domains()  # refused before hours of work, not after
    found = {name: ANALYSES[name](study) for name in names}
    record = {name: records(rows) for name, rows in found.items()}
    write_json(study.root / "lessons.json", record)
    if options.json:
        print(json.dumps(record))
    else:
        print_tables(found, TITLES)


def arms(study: LessonStudy) -> list[StudyRow]:
    """Success of every arm before and after, what it gained, how many lessons it ended with, rollouts it took."""
    rows: list[StudyRow] = []
    for arm, changes in ARMS.items():
        runs = [study.run(arm, seed, {"lessons": dict(changes)}) for seed in range(study.seeds)]
        sides = [_before_and_after(run) for run in runs]
        updates = [read_updates(run) for run in runs]
        worths = [worth for run in runs if (worth := study.worth(run)) is not None]
        numbers: dict[str, Sequence[float]] = {
            "before": [before.success for before, _ in sides],
            "after": [after.success for _, after in sides],
            "gain": [after.success - before.success for before, after in sides],
        }
        if worths:
            numbers["exact gain"] = [gain for gain, _ in worths]
            numbers["of the best"] = [gain / best if best else 0.0 for gain, best in worths]
        counts: dict[str, Sequence[float]] = {
            "lessons": [records[-1].lessons if records else 0 for records in updates],
            "rollouts": [records[-1].spent.rollouts if records else 0 for records in updates],
        }
        rows += [StudyRow(name=arm, metric=metric, values=tuple(values)) for metric, values in numbers.items()]
        rows += [
            StudyRow(name=arm, metric=metric, values=tuple(map(float, values)), as_percent=False)
            for metric, values in counts.items()
        ]
    return rows


def turns_by_epoch(study: LessonStudy) -> list[StudyRow]:
    """Turns, and so calls of tools, that a rollout took in each epoch, and its reward."""
    runs = [read_updates(study.run(LEARNED, seed, {})) for seed in range(study.seeds)]
    rows: list[StudyRow] = []
    for epoch in sorted({update.epoch for updates in runs for update in updates}):
        of_epoch = [[update for update in updates if update.epoch == epoch] for updates in runs]
        rows.append(_by_epoch(epoch, "reward", of_epoch, lambda update: update.mean_reward, as_percent=True))
        rows.append(_by_epoch(epoch, "turns", of_epoch, lambda update: update.turns_mean, as_percent=False))
    return rows


def transfer(study: LessonStudy) -> list[StudyRow]:
    """What lesson sets learned in one domain, or in all, gain in every domain."""
    domains, rows = study.domains(), list[StudyRow]()
    for source in (*domains, ALL):
        arm, changes = (LEARNED, {}) if source == ALL else (f"on-{source}", {"lessons": {"families": [source]}})
        runs = [study.run(arm, seed, changes) for seed in range(study.seeds)]
        sides = [_before_and_after(run) for run in runs]
        for domain in domains:
            measured = [after.by_family[domain].success - before.by_family[domain].success for before, after in sides]
            exact = [worth[0] for run in runs if (worth := study.worth(run, domain)) is not None]
            gains = {"": measured, "exact ": exact} if exact else {"": measured}
            rows += [
                StudyRow(name=f"learned on {source}", metric=f"{kind}gain on {domain}", values=tuple(values))
                for kind, values in gains.items()
            ]
    return rows


ANALYSES: Mapping[str, Callable[[LessonStudy], list[StudyRow]]] = {
    "arms": arms,
    "tools": turns_by_epoch,
    "transfer": transfer,
}
TITLES = {
    "arms": ("Ways to learn a lesson set", "arm"),
    "tools": ("While it learns", "epoch"),
    "transfer": ("From one domain to another", "lessons"),
}


def _by_epoch(
    epoch: int,
    metric: str,
    of_epoch: Sequence[Sequence[UpdateRecord]],
    value: Callable[[UpdateRecord], float],
    *,
    as_percent: bool,
) -> StudyRow:
    values = tuple(fmean(map(value, records)) for records in of_epoch if records)
    return StudyRow(name=str(epoch), metric=metric, values=values, as_percent=as_percent)


def _before_and_after(run: RunDirectory) -> tuple[EvaluationResult, EvaluationResult]:
    """The first set's evaluation without lessons, and with those learned."""
    results = run.evaluations.read()
    first = [
        result for result in results if (result.set_name, result.sampling) == (results[0].set_name, results[0].sampling)
    ]
    return first[0], first[-1]


if __name__ == "__main__":
    sys.exit(main())
