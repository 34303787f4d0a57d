"""A study: arms (recipes with changes) times seeds, each trained and evaluated, compared with intervals over seeds.

A TOML file names the arms; its paths are relative to itself:

    name = "group-size"

    [[arms]]
    name = "Flow-GRPO"
    recipe = "flow-grpo-tiny"         # a recipe by name, or a .toml file
    before = "warm start only"        # a row of its own for its evaluation before training

    [[arms]]
    name = "small groups"
    recipe = "flow-grpo-tiny"
    set = ["training.group_size=2"]

`plan` checks everything before any work. `run_study` trains what is missing: runs that are finished in the study's
directory are read, not repeated; an interrupted one resumes.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from operator import sub
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator
from pydantic_core import to_jsonable_python

from midstream import api
from midstream.components.component import Table
from midstream.components.own import anchored
from midstream.components.tables import validate
from midstream.core.data import Settings
from midstream.core.errors import RecipeError, UsageError, did_you_mean, name_place
from midstream.core.events import Listener
from midstream.core.metrics import EvaluationResult
from midstream.core.text_file import read_toml
from midstream.evaluation.settings import SetConfig, sampling_name
from midstream.recipe.build import Build
from midstream.recipe.check import set_reward
from midstream.recipe.estimate import set_tasks
from midstream.recipe.files import each_setting, recipe_directories, toml_value, with_overrides
from midstream.recipe.overrides import evaluation_recipe
from midstream.recipe.schema import Recipe, load_recipe
from midstream.recipe.sessions import check_work
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write
from midstream_extra.study_tables import StudyRow

Seeds = dict[str, list[Sequence[EvaluationResult]]]  # row -> the evaluations of each seed
EvaluationKey = tuple[str, str]  # set, sampling


class Arm(Settings):
    """A recipe with changes, run once a seed.

    `set` changes settings, as `--set` does: texts `A.B=VALUE`, or a table. A recipe with [training] or [lessons] is
    trained, unless `train` is false; others are evaluated as they are. `before` names a row of its own for the
    evaluation before training. `directory` begins the names of its runs; by default it is the recipe's name, or the
    arm's if it has `set`.
    """

    name: str
    recipe: str
    set: Table = {}
    train: bool = True
    before: str = ""
    directory: str = ""

    @field_validator("set", mode="before")
    @classmethod
    def _as_table(cls, value: Any) -> Any:
        return with_overrides({}, list(map(str, value))) if isinstance(value, list | tuple) else value

    @property
    def overrides(self) -> list[str]:
        """The changes of `set`, as `--set` takes them."""
        return [f"{'.'.join(path)}={toml_value(value)}" for path, value in each_setting([], self.set) if path]

    @property
    def runs(self) -> str:
        """The beginning of the names of its runs."""
        slug = re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-")
        return self.directory or (slug if self.set else Path(self.recipe).stem)


class StudyFile(Settings):
    """A study as its file describes it."""

    name: str = Field(pattern=r"^[^/\\\x00-\x1f]+$")  # it names the study's directory
    title: str = ""
    seeds: int = 3
    arms: tuple[Arm, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_names(self) -> StudyFile:
        rows = [name for arm in self.arms for name in (arm.name, arm.before) if name]
        runs = {(arm.runs, arm.recipe, *arm.overrides, arm.train) for arm in self.arms}
        for what, names in (("rows", rows), ("arms with runs", [run[0] for run in runs])):
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise RecipeError(
                    f"study {self.name!r} has two {what} named {twice[0]!r}",
                    code="name-clash",
                    fix="give each arm, and each `before`, its own name; or one of the arms another `directory`",
                )
        return self


def shipped_studies() -> dict[str, Path]:
    """The studies of this and of other installed packages, by name: the folder `studies` next to their recipes."""
    folders = [Path(__file__).with_name("studies"), *(path.with_name("studies") for path in recipe_directories())]
    files = [path for folder in folders for path in folder.glob("*.toml")]
    return {path.stem: path for path in sorted(files) if "arms" in read_toml(path)}


def read_study(name: str | Path) -> StudyFile:
    """The study in a TOML file, by path or by the name of an installed one. Raises `RecipeError`.

    Its paths to recipes, and paths in `set` to files that exist, are relative to the file.
    """
    known = shipped_studies()
    path = Path(name) if str(name).endswith(".toml") else known.get(str(name))
    if path is None or not os.path.exists(path):
        raise RecipeError(
            f"there is no study {str(name)!r}",
            code="file-not-found",
            fix=f"{did_you_mean(name, known)}midstream study --list, or a file as midstream-extra's README.md has",
        )
    study, directory = validate(StudyFile, read_toml(path), "", of=f"study {path}"), path.parent.resolve()
    arms: list[Arm] = []
    for arm in study.arms:
        recipe = str(directory / arm.recipe) if arm.recipe.endswith(".toml") else arm.recipe
        arms.append(arm.model_copy(update={"recipe": recipe, "set": anchored(arm.set, directory)}))
    return study.model_copy(update={"arms": tuple(arms)})


def chosen(known: Sequence[str], only: Sequence[str]) -> list[str]:
    """The names in `only`, or all of `known` if it is empty. Raises `UsageError` for an unknown name."""
    for name in only:
        if name not in known:
            raise UsageError(
                f"{name!r} is not part of this study",
                code="unknown-name",
                fix=f"{did_you_mean(name, known)}name some of: {', '.join(known)}",
            )
    return list(only or known)


# --- before any work --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmRun:
    """One arm with one seed: its recipe, its directory, whether it is trained."""

    arm: Arm
    seed: int
    recipe: Recipe
    trained: bool
    changes: Sequence[str]
    out: Path

    @property
    def state(self) -> str:
        """The state of its run, such as "finished", or "missing"."""
        return RunDirectory.open(self.out).status().state if (self.out / "run.json").exists() else "missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A study's runs in `root`, arm by arm, and the evaluations that all arms have."""

    study: StudyFile
    root: Path
    runs: Sequence[ArmRun]
    compared: Sequence[EvaluationKey]


def plan(
    study: StudyFile,
    root: Path,
    *,
    seeds: int | None = None,
    only: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> Plan:
    """Check every arm, and that all can be compared.

    Args:
        study: the study.
        root: the directory of its runs.
        seeds: how many, 0 to `seeds` - 1; by default as the study has it.
        only: names of arms, by default all.
        overrides: `A.B=VALUE` settings of every arm.

    Raises:
        RecipeError: a recipe is not valid; the error names its arm.
        UsageError: an arm is not known, or arms have nothing in common to compare.
    """
    seeds = study.seeds if seeds is None else seeds
    if seeds < 1:
        raise UsageError(f"a study with seeds = {seeds} runs nothing", code="empty-value", fix="e.g. --seeds 3")
    names, runs = chosen([arm.name for arm in study.arms], only), list[ArmRun]()
    for arm in (arm for arm in study.arms if arm.name in names):
        with name_place(f"arm {arm.name!r}"):
            for seed in range(seeds):
                changes = [*arm.overrides, *overrides, f"seed={seed}"]
                recipe = load_recipe(arm.recipe, changes)
                trained = arm.train and (recipe.training is not None or recipe.lessons is not None)
                if not trained:
                    recipe = evaluation_recipe(arm.recipe, overrides=changes)
                out = root / f"{arm.runs}-s{seed}"
                runs.append(ArmRun(arm=arm, seed=seed, recipe=recipe, trained=trained, changes=changes, out=out))
            with Build(runs[-1].recipe) as build:
                check_work(build, "train" if runs[-1].trained else "eval")
    return Plan(study=study, root=root, runs=runs, compared=_compared([run for run in runs if run.seed == 0]))


def _compared(runs: Sequence[ArmRun]) -> list[EvaluationKey]:
    """The sets and samplings that all arms are evaluated on; the validation set only where they share no other.

    Raises `UsageError` if they share nothing, or if one set has other tasks or another reward in some arm.
    """
    offered: dict[str, dict[EvaluationKey, SetConfig]] = {}
    for run in runs:
        config = run.recipe.evaluation
        keys = {(each.name, sampling_name(at)): each for each in config.sets for at in config.temperatures}
        if run.trained and run.recipe.training:  # the validation set is evaluated too, greedily
            keys.setdefault((config.validation.name, sampling_name(0)), config.validation)
        offered[run.arm.name] = keys
    first, *others = offered.values()
    shared = [key for key in first if all(key in keys for keys in others)]
    shared = [key for key in shared if key[0] != runs[0].recipe.evaluation.validation.name] or shared
    if not shared:
        has = "; ".join(f"{arm}: {', '.join(map(' '.join, keys)) or 'none'}" for arm, keys in offered.items())
        raise UsageError(
            "the arms have no evaluation in common",
            code="not-comparable",
            cause=f"their sets and samplings are {has}",
            fix="evaluate all arms on one set at one temperature",
        )
    for key in {set_name: (set_name, sampling) for set_name, sampling in shared}.values():
        sets = [offered[run.arm.name][key] for run in runs]
        measures = [_measure(run.recipe, each) for run, each in zip(runs, sets, strict=True)]
        for run, measure in zip(runs, measures, strict=True):
            if measure != measures[0]:
                raise UsageError(
                    f"set {key[0]!r} has another reward or other tasks in arm {run.arm.name!r} than in the first",
                    code="not-comparable",
                    fix="give the set the same tasks, and one `reward`, in all arms; [reward] is then for training",
                )
    return shared


def _measure(recipe: Recipe, chosen: SetConfig) -> tuple[Any, frozenset[str]]:
    """What a success on a set means: its reward, and its questions unless they are on the Hugging Face Hub."""
    with Build(recipe) as build:
        questions = frozenset(task.question for task in set_tasks(build, chosen) or ())
    return set_reward(recipe, chosen).table(), questions


# --- the work ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyResult:
    """A study's numbers, each a value a seed.

    `rows` are the arms' (and their `before`), `differences` those of the others less the first arm's, seed by seed.
    `evaluations` are what they were read from.
    """

    rows: Sequence[StudyRow]
    differences: Sequence[StudyRow]
    evaluations: Seeds


def run_study(
    planned: Plan,
    *,
    report: Callable[[str], None] = lambda text: None,
    progress: Callable[[], AbstractContextManager[Listener]] = lambda: nullcontext(api.print_warnings),
) -> StudyResult:
    """Train and evaluate what is missing, then write `study.json` into the study's directory.

    `report` receives a line a run; `progress` makes the listener of each.
    """
    found: Seeds = {}
    sampled: dict[str, list[float]] = {}
    for place, run in enumerate(planned.runs, 1):
        arm = run.arm
        report(f"{arm.name}, seed {run.seed} ({place} of {len(planned.runs)})")
        with name_place(f"arm {arm.name!r}"), progress() as listener:
            if run.trained:
                done = api.train(run.recipe, out=run.out, exist_ok=True, listener=listener).directory
            else:
                done = api.evaluate(arm.recipe, out=run.out, overrides=run.changes, listener=listener).directory
        evaluations = done.evaluations.read()
        if arm.before:
            found.setdefault(arm.before, []).append([result for result in evaluations if result.step == 0])
        found.setdefault(arm.name, []).append(evaluations)
        sampled.setdefault(arm.name, []).append(sum(step.completion_tokens for step in done.metrics.read()) / 1e6)
    rows = study_rows(found, planned.compared)
    # What training cost: arms are to be compared at about as many.
    rows += [
        StudyRow(name=name, metric="million tokens sampled", values=tuple(values), as_percent=False)
        for name, values in sampled.items()
        if any(values)
    ]
    apart = differences(rows, planned.runs[0].arm.name)
    record = to_jsonable_python({"rows": rows, "differences": apart})
    atomic_write(planned.root / "study.json", (json.dumps(record, indent=1) + "\n").encode())
    return StudyResult(rows=rows, differences=apart, evaluations=found)


def study_rows(found: Seeds, compared: Sequence[EvaluationKey]) -> list[StudyRow]:
    """Success on every set, and errors and turns on the first, of each row, a value a seed."""
    rows: list[StudyRow] = []
    for name, seeds in found.items():
        for set_name, sampling in compared:
            results = [last_evaluation(evaluations, set_name, sampling) for evaluations in seeds]
            values = tuple(result.success for result in results)
            interval = results[0].interval if len(results) == 1 else None
            rows.append(StudyRow(name=name, metric=f"{set_name}, {sampling}", values=values, interval=interval))
        results = [last_evaluation(evaluations, *compared[0]) for evaluations in seeds]
        errors = tuple(result.tool_use.error_rate for result in results)
        turns = tuple(result.turns_mean for result in results)
        rows.append(StudyRow(name=name, metric="tool errors", values=errors))
        rows.append(StudyRow(name=name, metric="turns", values=turns, as_percent=False))
    return rows


def last_evaluation(evaluations: Sequence[EvaluationResult], set_name: str, sampling: str) -> EvaluationResult:
    """The last evaluation of that set with that sampling. Raises `RecipeError` if it was not evaluated."""
    found = [result for result in evaluations if (result.set_name, result.sampling) == (set_name, sampling)]
    if not found:
        raise RecipeError(
            f"the study needs an evaluation of set {set_name!r}, {sampling}",
            code="missing-key",
            fix='keep evaluation.sets and evaluation.temperatures; a row `before` needs evaluation.at = "both"',
        )
    return max(found, key=lambda result: result.step or 0)


def differences(rows: Sequence[StudyRow], first: str) -> list[StudyRow]:
    """The other rows less the row `first`, seed by seed: one seed begins with the same weights and tasks."""
    base = {row.metric: row.values for row in rows if row.name == first}
    return [
        replace(row, values=tuple(map(sub, row.values, base[row.metric])), interval=None, signed=True)
        for row in rows
        if row.name != first
    ]
