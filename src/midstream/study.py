"""A study: arms (recipes with changes) times seeds, each trained and evaluated, compared with intervals over seeds.

A TOML file names the arms and the numbers to compare:

    name = "controls"

    [[arms]]
    name = "Flow-GRPO"
    recipe = "flow-grpo-tiny"
    before = "warm start only"        # a row of its own for its evaluation before training

    [[arms]]
    name = "small groups"
    recipe = "flow-grpo-tiny"
    overrides = ["training.group_size=2"]

    [metrics.greedy]
    value = "success"
    sampling = "greedy"

Runs that are finished in the study's directory are read, not repeated; an interrupted one resumes.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from midstream import api
from midstream.core.component import validate
from midstream.core.data import Settings
from midstream.core.errors import RecipeError, UsageError
from midstream.core.metrics import EvaluationResult
from midstream.core.text_file import read_toml
from midstream.recipe.check import check
from midstream.recipe.schema import load_recipe
from midstream.report.study_tables import StudyRow
from midstream.runs.directory import RunDirectory

Seeds = dict[str, list[Sequence[EvaluationResult]]]  # row -> the evaluations of each seed


class Metric(Settings):
    """A number of each arm.

    `value` is a path into the JSON of an `EvaluationResult` ("success", "tool_use.error_rate"), or several whose mean
    it is. It is read from the evaluation of set `set` (default: the first) with `sampling`, `at` the last evaluated
    step, the first, or their difference ("gain"). `per_run` divides by the number of trajectories; `missing` stands in
    for a path that is not there, such as the share of a tool that was never called.
    """

    value: str | tuple[str, ...]
    set: str = ""
    sampling: str = "T=1"
    at: Literal["before", "after", "gain"] = "after"
    percent: bool = True
    per_run: bool = False
    missing: float | None = None

    @field_validator("value")
    @classmethod
    def _begins_with_a_field(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for path in (value,) if isinstance(value, str) else value:
            if path.partition(".")[0] not in EvaluationResult.model_fields:
                raise ValueError(f"an evaluation has no {path!r}; it has {', '.join(EvaluationResult.model_fields)}")
        return value

    def of(self, evaluations: Sequence[EvaluationResult]) -> float:
        """The number in the evaluations of one run. Raises `RecipeError` if it is not there."""
        before, after = self._first_and_last(evaluations)
        if self.at == "gain":
            return self._read(after) - self._read(before)
        return self._read(before if self.at == "before" else after)

    def over_tasks(self, evaluations: Sequence[EvaluationResult]) -> tuple[float, float] | None:
        """The interval of one run's number over its tasks, which an evaluation has of its success alone."""
        before, after = self._first_and_last(evaluations)
        if self.value != "success" or self.at == "gain" or self.per_run:
            return None
        return (before if self.at == "before" else after).interval

    def _first_and_last(self, evaluations: Sequence[EvaluationResult]) -> tuple[EvaluationResult, EvaluationResult]:
        """The evaluations of the metric's set and sampling at the first and the last evaluated step."""
        name = self.set or (evaluations[0].set_name if evaluations else "")
        found = [result for result in evaluations if (result.set_name, result.sampling) == (name, self.sampling)]
        if not found:
            raise RecipeError(
                f"the study needs an evaluation of set {name!r}, {self.sampling}",
                code="missing-key",
                fix="keep evaluation.sets and evaluation.temperatures of the recipe, or change the metric",
            )
        return min(found, key=lambda result: result.step or 0), max(found, key=lambda result: result.step or 0)

    def _read(self, result: EvaluationResult) -> float:
        paths = (self.value,) if isinstance(self.value, str) else self.value
        values = []
        for path in paths:
            found: Any = result.model_dump(mode="json")
            for key in path.split("."):
                found = found.get(key) if isinstance(found, Mapping) else None
            value = self.missing if found is None else found
            if value is None:
                raise RecipeError(
                    f"an evaluation has no {path!r}",
                    code="missing-key",
                    cause="the recipe's tasks, tools or evaluation sets lack it",
                    fix="keep them as they are, or give the metric a `missing` value",
                )
            values.append(float(value))
        return fmean(values) / (result.tasks * result.trials if self.per_run else 1)


DEFAULT_METRICS = {
    "before": Metric(value="success", at="before"),
    "after": Metric(value="success"),
    "tool errors": Metric(value="tool_use.error_rate"),
    "turns": Metric(value="turns_mean", percent=False),
}


class Arm(Settings):
    """A recipe with changes, trained into a run a seed; with `train` false only evaluated.

    `before` names a row of its own for the evaluation before training. `directory` begins the names of its runs; by
    default it is the recipe's name, or the arm's if it has `overrides`.
    """

    name: str
    recipe: str
    overrides: tuple[str, ...] = ()
    train: bool = True
    before: str = ""
    directory: str = ""

    @property
    def runs(self) -> str:
        """The beginning of the names of its runs."""
        slug = re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-")
        return self.directory or (slug if self.overrides else Path(self.recipe).stem)


class StudyFile(Settings):
    """A study as its file describes it."""

    name: str
    title: str = ""
    seeds: int = Field(default=3, ge=1)
    arms: tuple[Arm, ...] = Field(min_length=1)
    metrics: dict[str, Metric] = DEFAULT_METRICS

    @model_validator(mode="after")
    def _names_differ(self) -> StudyFile:
        names = [name for arm in self.arms for name in (arm.name, arm.before) if name]
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise ValueError(f"two rows have the same name: {', '.join(twice)}")
        runs = {(arm.runs, arm.recipe, arm.overrides, arm.train) for arm in self.arms}
        if twice := [name for name, count in Counter(run[0] for run in runs).items() if count > 1]:
            raise ValueError(f"two arms have runs in {twice[0]!r}: give one of them another `directory`")
        return self


_PACKAGED = Path(__file__).parent / "studies"  # else the checkout that midstream is installed from
SHIPPED = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parents[2] / "studies"


def shipped_studies() -> list[StudyFile]:
    """The studies that come with midstream, by name; other files there are of programs in the same directory."""
    tables = [(path, read_toml(path)) for path in sorted(SHIPPED.glob("*.toml"))]
    return [validate(StudyFile, table, "", of=f"study {path}") for path, table in tables if "arms" in table]


def read_study(name: str | Path) -> StudyFile:
    """The study in a TOML file, by path or by the name of one that comes with midstream. Raises `RecipeError`."""
    path = Path(name) if str(name).endswith(".toml") else SHIPPED / f"{name}.toml"
    if not os.path.exists(path):
        raise RecipeError(
            f"there is no study {str(name)!r}",
            code="file-not-found",
            cause="it is neither a .toml file nor the name of a study that comes with midstream",
            fix="midstream study --list, or a file like docs/study.md shows",
        )
    return validate(StudyFile, read_toml(path), "", of=f"study {path}")


def chosen(known: Sequence[str], only: Sequence[str]) -> list[str]:
    """The names in `only`, or all of `known` if it is empty. Raises `UsageError` for an unknown name."""
    for name in only:
        if name not in known:
            raise UsageError(
                f"{name!r} is not part of this study", code="unknown-name", fix=f"name some of: {', '.join(known)}"
            )
    return list(only or known)


def check_seeds(seeds: int) -> None:
    """Raise `UsageError` unless there is at least one seed."""
    if seeds < 1:
        raise UsageError(f"--seeds {seeds} trains nothing", code="empty-value", fix="e.g. --seeds 3")


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmRun:
    """One arm with one seed, and its directory."""

    arm: Arm
    seed: int
    changes: list[str]
    out: Path

    @property
    def state(self) -> str:
        """The state of its run, such as "finished", or "missing"."""
        return RunDirectory.open(self.out).status().state if (self.out / "run.json").exists() else "missing"

    def summary(self) -> dict[str, Any]:
        """Which arm, recipe, seed, changes and directory it has, and its state, as JSON values."""
        named = {"arm": self.arm.name, "recipe": self.arm.recipe, "seed": self.seed}
        return {**named, "changes": self.changes, "directory": str(self.out), "state": self.state}


def plan(
    study: StudyFile, root: Path, *, seeds: int, only: Sequence[str] = (), overrides: Sequence[str] = ()
) -> list[ArmRun]:
    """The runs of a study in `root`. Raises `RecipeError` if a recipe is not valid, before any work of another arm."""
    check_seeds(seeds)
    names = chosen([arm.name for arm in study.arms], only)
    planned = []
    for arm in study.arms:
        if arm.name in names:
            check(load_recipe(arm.recipe, [*arm.overrides, *overrides]))
            for seed in range(seeds):
                changes = [*arm.overrides, *overrides, f"seed={seed}"]
                planned.append(ArmRun(arm=arm, seed=seed, changes=changes, out=root / f"{arm.runs}-s{seed}"))
    return planned


def run_arms(planned: Sequence[ArmRun], *, report: Callable[[str], None] = lambda text: None) -> Seeds:
    """Train and evaluate what is missing; returns each seed's evaluations by row (arms and `before`)."""
    found: Seeds = {}
    for planned_run in planned:
        arm = planned_run.arm
        report(f"{arm.name}, seed {planned_run.seed}")
        if arm.train:
            run = api.train(load_recipe(arm.recipe, planned_run.changes), planned_run.out, exist_ok=True)
        else:
            run = api.evaluate(arm.recipe, planned_run.out, overrides=planned_run.changes)
        evaluations = run.evaluations.read()
        if arm.before:
            found.setdefault(arm.before, []).append([result for result in evaluations if result.step == 0])
        found.setdefault(arm.name, []).append(evaluations)
    return found


def rows(study: StudyFile, found: Seeds) -> list[StudyRow]:
    """Every metric of every row, a value a seed."""
    return [
        StudyRow(
            name=name,
            metric=metric,
            values=tuple(settings.of(evaluations) for evaluations in seeds),
            interval=settings.over_tasks(seeds[0]) if len(seeds) == 1 else None,
            as_percent=settings.percent,
        )
        for name, seeds in found.items()
        for metric, settings in study.metrics.items()
    ]
