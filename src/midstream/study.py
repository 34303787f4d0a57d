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
        name = self.set or (evaluations[0].set_name if evaluations else "")
        found = [result for result in evaluations if (result.set_name, result.sampling) == (name, self.sampling)]
        if not found:
            raise RecipeError(
                f"the study needs an evaluation of set {name!r}, {self.sampling}",
                code="missing-key",
                fix="keep evaluation.sets and evaluation.temperatures of the recipe, or change the metric",
            )
        before = min(found, key=lambda result: result.step or 0)
        after = max(found, key=lambda result: result.step or 0)
        if self.at == "gain":
            return self._read(after) - self._read(before)
        return self._read(before if self.at == "before" else after)

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


def read_study(name: str | Path) -> StudyFile:
    """The study in a TOML file, by path or by the name of one that comes with midstream. Raises `RecipeError`."""
    packaged = Path(__file__).parent / "studies"  # else the checkout that midstream is installed from
    shipped = packaged if packaged.is_dir() else Path(__file__).parents[2] / "studies"
    path = Path(name) if str(name).endswith(".toml") else shipped / f"{name}.toml"
    if not os.path.exists(path):
        raise RecipeError(
            f"there is no study {str(name)!r}",
            code="file-not-found",
            cause="it is neither a .toml file nor the name of a study that comes with midstream",
            fix="midstream study controls, or a file like docs/study.md shows",
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


def run_arms(
    study: StudyFile,
    root: Path,
    *,
    seeds: int,
    only: Sequence[str] = (),
    overrides: Sequence[str] = (),
    report: Callable[[str], None] = lambda text: None,
) -> Seeds:
    """Train and evaluate what is missing in `root`; returns each seed's evaluations by row (arms and `before`)."""
    check_seeds(seeds)
    names = chosen([arm.name for arm in study.arms], only)
    arms = [arm for arm in study.arms if arm.name in names]
    for arm in arms:  # an error in the last arm's recipe must not wait for the others' trainings
        if arm.train:
            check(load_recipe(arm.recipe, [*arm.overrides, *overrides]))
    found: Seeds = {}
    for arm in arms:
        for seed in range(seeds):
            report(f"{arm.name}, seed {seed}")
            changes = [*arm.overrides, *overrides, f"seed={seed}"]
            out = root / f"{arm.runs}-s{seed}"
            if arm.train:
                run = api.train(load_recipe(arm.recipe, changes), out, exist_ok=True)
            else:
                run = api.evaluate(arm.recipe, out, overrides=changes)
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
            as_percent=settings.percent,
        )
        for name, seeds in found.items()
        for metric, settings in study.metrics.items()
    ]
