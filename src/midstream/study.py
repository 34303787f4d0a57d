"""A study: arms (recipes with changes) times seeds, each trained and evaluated, compared with intervals over seeds.

A TOML file names the arms and the numbers to compare; its paths are relative to itself:

    name = "controls"

    [[arms]]
    name = "Flow-GRPO"
    recipe = "flow-grpo-tiny"         # a recipe that comes with midstream, or a .toml file
    before = "warm start only"        # a row of its own for its evaluation before training

    [[arms]]
    name = "small groups"
    recipe = "flow-grpo-tiny"
    set = ["training.group_size=2"]

    [metrics.greedy]
    value = "success"
    sampling = "greedy"

`plan` checks everything before any work. `run_study` trains what is missing: runs that are finished in the study's
directory are read, not repeated; an interrupted one resumes.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from operator import sub
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import to_jsonable_python

from midstream import api
from midstream.core.component import Table
from midstream.core.data import Settings
from midstream.core.errors import RecipeError, UsageError, did_you_mean, name_place
from midstream.core.events import Listener
from midstream.core.metrics import EvaluationResult
from midstream.core.own import anchored
from midstream.core.tables import shown, validate
from midstream.core.text_file import read_toml
from midstream.evaluation import SetConfig, sampling_name
from midstream.recipe.build import Build, check_machine
from midstream.recipe.check import check, set_reward
from midstream.recipe.estimate import set_tasks
from midstream.recipe.overrides import evaluation_recipe
from midstream.recipe.schema import Recipe, each_setting, load_recipe, overrides_of, with_overrides
from midstream.recipe.sessions import check_work
from midstream.report.study import Panel, StudyRow, dots, panels
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write

Seeds = dict[str, list[Sequence[EvaluationResult]]]  # row -> the evaluations of each seed

SUCCESS, TOKENS = "success", "new tokens a task"

_SETTINGS_SHOWN = 3
_PROGRAM = re.compile(r"python -m studies\.\w+( studies/\S+\.toml)?")  # in the comment of a program's file


class Metric(Settings):
    """A number of each arm.

    `value` is a path into the JSON of an `EvaluationResult` ("success", "tool_use.error_rate"), or several whose mean
    it is. It is read from the evaluation of set `set` with `sampling` (default: the first that all arms have), `at` the
    last evaluated step, the first, or their difference ("gain"). `per_run` divides by the number of trajectories;
    `missing` stands in for a path that is not there, such as the share of a tool that was never called.
    """

    value: str | tuple[str, ...]
    set: str = ""
    sampling: str = ""
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

    def reads(self, key: tuple[str, str]) -> bool:
        """Whether the number can be read from evaluations of that set and sampling."""
        return self.set in ("", key[0]) and self.sampling in ("", key[1])

    def of(self, evaluations: Sequence[EvaluationResult]) -> float:
        """The number in the evaluations of one run. Raises `RecipeError` if it is not there."""
        values = list(map(self._read, self._picked(evaluations)))
        return values[-1] - values[0] if self.at == "gain" else values[0]

    def over_tasks(self, evaluations: Sequence[EvaluationResult]) -> tuple[float, float] | None:
        """The interval of one run's number over its tasks, which an evaluation has of its success alone."""
        alone = self.value == SUCCESS and self.at != "gain" and not self.per_run
        return self._picked(evaluations)[0].interval if alone else None

    def _picked(self, evaluations: Sequence[EvaluationResult]) -> list[EvaluationResult]:
        """The evaluation before or after training, of a gain both."""
        readable = [result for result in evaluations if self.reads((result.set_name, result.sampling))]
        if not readable:
            raise RecipeError(
                f"the study needs an evaluation of {f'set {self.set!r}' if self.set else 'a set'} {self.sampling}",
                code="missing-key",
                fix="keep evaluation.sets and evaluation.temperatures of the recipe, or change the metric",
            )
        wanted = readable[0].set_name, readable[0].sampling
        found = [result for result in readable if (result.set_name, result.sampling) == wanted]
        found.sort(key=lambda result: result.step or 0)
        return {"before": found[:1], "after": found[-1:], "gain": [found[0], found[-1]]}[self.at]

    def _read(self, result: EvaluationResult) -> float:
        values: list[float] = []
        for path in (self.value,) if isinstance(self.value, str) else self.value:
            found: Any = result.model_dump(mode="json")
            for key in path.split("."):
                found = found.get(key) if isinstance(found, Mapping) else None
            if (value := self.missing if found is None else found) is None:
                raise RecipeError(
                    f"an evaluation has no {path!r}",
                    code="missing-key",
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
    """A recipe with changes, run once a seed.

    `set` changes settings, as `--set` does: texts `A.B=VALUE`, or a table. A recipe with [training] or [practice] is
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
        return overrides_of({".".join(path): value for path, value in each_setting([], self.set) if path})

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
    metrics: dict[str, Metric] = DEFAULT_METRICS

    @model_validator(mode="after")
    def _names_differ(self) -> StudyFile:
        names = [name for arm in self.arms for name in (arm.name, arm.before) if name]
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise RecipeError(
                f"two rows of study {self.name!r} have the same name: {', '.join(twice)}",
                code="name-clash",
                fix="give each arm, and each `before`, its own name",
            )
        runs = {(arm.runs, arm.recipe, *arm.overrides, arm.train) for arm in self.arms}
        if twice := [name for name, count in Counter(run[0] for run in runs).items() if count > 1]:
            raise RecipeError(
                f"two arms of study {self.name!r} have runs in {twice[0]!r}",
                code="name-clash",
                fix="give one of them another `directory`",
            )
        return self


_PACKAGED = Path(__file__).parent / "studies"  # else the checkout that midstream is installed from
SHIPPED = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).parents[2] / "studies"


def shipped_studies() -> list[StudyFile]:
    """The studies that come with midstream, by name; other files there are of programs in the same directory."""
    tables = [(path, read_toml(path)) for path in sorted(SHIPPED.glob("*.toml"))]
    return [validate(StudyFile, table, "", of=f"study {path}") for path, table in tables if "arms" in table]


def read_study(name: str | Path) -> StudyFile:
    """The study in a TOML file, by path or by the name of one that comes with midstream. Raises `RecipeError`.

    Its paths to recipes, and paths in `set` to files that exist, are relative to the file.
    """
    path = Path(name) if str(name).endswith(".toml") else SHIPPED / f"{name}.toml"
    if not os.path.exists(path):
        if (program := SHIPPED / f"{str(name).replace('-', '_')}.py").is_file():
            raise _is_program(f"the study {name!r}", f"python -m studies.{program.stem}")
        raise RecipeError(
            f"there is no study {str(name)!r}",
            code="file-not-found",
            fix=did_you_mean(name, (file.stem for file in SHIPPED.glob("*.toml")))
            + "midstream study --list, or a file like docs/evaluation.md shows",
        )
    table, directory = read_toml(path), path.parent.resolve()
    if "arms" not in table and table.keys() & {"extends", "agent", "engines"}:
        raise RecipeError(
            f"{path} is a recipe; a study has [[arms]]",
            code="recipe-invalid",
            fix=f'write a study with an arm of it: [[arms]] name = "first", recipe = "{path.name}"; docs/evaluation.md',
        )
    if "arms" not in table and (command := _PROGRAM.search(path.read_text(encoding="utf-8"))):
        raise _is_program(f"{path}", command[0])
    study = validate(StudyFile, table, "", of=f"study {path}")
    arms: list[Arm] = []
    for arm in study.arms:
        recipe = str(directory / arm.recipe) if arm.recipe.endswith(".toml") else arm.recipe
        arms.append(arm.model_copy(update={"recipe": recipe, "set": anchored(arm.set, directory)}))
    return study.model_copy(update={"arms": tuple(arms)})


def _is_program(what: str, command: str) -> UsageError:
    return UsageError(f"{what} is of a program and has no [[arms]]", code="recipe-invalid", fix=command)


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


def check_seeds(seeds: int) -> None:
    """Raise `UsageError` unless there is at least one seed."""
    if seeds < 1:
        raise UsageError(f"a study with seeds = {seeds} runs nothing", code="empty-value", fix="e.g. --seeds 3")


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

    def summary(self) -> dict[str, Any]:
        """Which arm, recipe, seed, changes and directory it has, and its state, as JSON values."""
        named = {"arm": self.arm.name, "recipe": self.arm.recipe, "seed": self.seed}
        return {**named, "changes": self.changes, "directory": str(self.out), "state": self.state}


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A study's runs in `root`, arm by arm; every metric names its set and sampling, and `notes` are for the user."""

    study: StudyFile
    root: Path
    runs: Sequence[ArmRun]
    notes: Sequence[str]

    @property
    def firsts(self) -> dict[str, ArmRun]:
        """Each arm's run with the first seed."""
        return {run.arm.name: run for run in self.runs if run.seed == 0}

    @property
    def recipes(self) -> dict[str, Recipe]:
        """Each arm's recipe, with the first seed."""
        return {name: run.recipe for name, run in self.firsts.items()}


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
        UsageError: an arm is not known, arms have nothing in common to compare, or a run in `root` has other settings.
    """
    seeds = study.seeds if seeds is None else seeds
    check_seeds(seeds)
    names = chosen([arm.name for arm in study.arms], only)
    runs = []
    for arm in (arm for arm in study.arms if arm.name in names):
        with name_place(f"arm {arm.name!r}"):
            for seed in range(seeds):
                changes = [*arm.overrides, *overrides, f"seed={seed}"]
                recipe = load_recipe(arm.recipe, changes)
                trained = arm.train and (recipe.training is not None or recipe.practice is not None)
                if not trained:
                    recipe = evaluation_recipe(arm.recipe, overrides=changes)
                out = root / f"{arm.runs}-s{seed}"
                run = ArmRun(arm=arm, seed=seed, recipe=recipe, trained=trained, changes=changes, out=out)
                _check_unchanged(run)
                runs.append(run)
            with Build(runs[-1].recipe) as build:
                check_machine(build)
                check_work(build, "train" if runs[-1].trained else "eval")
    return _comparable(Plan(study=study, root=root, runs=runs, notes=()))


def _check_unchanged(run: ArmRun) -> None:
    """Check a recipe, and raise `UsageError` if its directory holds a run with other settings."""
    check(run.recipe)
    if not (run.out / "run.json").exists():
        return
    begun = RunDirectory.open(run.out)
    trained = begun.info().kind != "evaluation"
    changed = api.differing(begun, run.recipe)
    if trained != run.trained:
        changed.insert(0, f"train: {trained} | {run.trained}".lower())
    if changed:
        raise UsageError(
            f"{run.out} began with other settings (its own | now): {'; '.join(changed[:_SETTINGS_SHOWN])}",
            code="inputs-changed",
            fix=f"undo the change, give the arm another `directory`, or start over with --out or without {run.out}",
        )


def _trajectories_a_step(recipe: Recipe) -> int:
    """0 of a recipe that does not learn from its own trajectories in steps of equal size."""
    training = recipe.training
    if training is None or training.algorithm == "supervised":
        return 0
    return training.tasks_per_step * training.group_size


def _comparable(planned: Plan) -> Plan:
    """The plan, each metric with the set and sampling that it is read from.

    Raises `UsageError` if arms have no set and sampling in common, or one set with other tasks or another reward.
    """
    offered: dict[str, dict[tuple[str, str], SetConfig]] = {}
    for arm, run in planned.firsts.items():
        config = run.recipe.evaluation
        samplings = list(map(sampling_name, config.temperatures))
        keys = {(chosen.name, sampling): chosen for chosen in config.sets for sampling in samplings}
        if run.trained and run.recipe.training:  # it is evaluated too, greedily
            keys[config.validation.name, sampling_name(0)] = config.validation
        offered[arm] = keys
    shared = [key for key in next(iter(offered.values())) if all(key in keys for keys in offered.values())]
    metrics: dict[str, Metric] = {}
    for name, metric in planned.study.metrics.items():
        if (key := next(filter(metric.reads, shared), None)) is None:
            has = "; ".join(f"{arm}: {', '.join(map(' '.join, keys)) or 'none'}" for arm, keys in offered.items())
            raise UsageError(
                f"metric {name!r} has no evaluation to read in all arms",
                code="not-comparable",
                cause=f"their sets and samplings are {has}",
                fix="evaluate all arms on one set at one temperature; or change `set` or `sampling` of the metric",
            )
        metrics[name] = metric.model_copy(update={"set": key[0], "sampling": key[1]})
    notes: list[str] = []
    budgets = {
        arm: recipe.training.steps * each
        for arm, recipe in planned.recipes.items()
        if recipe.training and (each := _trajectories_a_step(recipe))
    }
    if len(set(budgets.values())) > 1:  # more trajectories may be all the gain
        counts = ", ".join(f"{arm} on {count:,}" for arm, count in budgets.items())
        notes.append(f"the arms train on different numbers of trajectories: {counts}")
    if find_spec("matplotlib") is None:
        notes.append("figures need matplotlib: pip install 'midstream[studies]'")
    for set_name in dict.fromkeys(metric.set for metric in metrics.values()):
        sets = {arm: chosen for arm, keys in offered.items() for (name, _), chosen in keys.items() if name == set_name}
        _check_same_measure(planned.recipes, sets)
    return replace(planned, study=planned.study.model_copy(update={"metrics": metrics}), notes=notes)


def _check_same_measure(recipes: Mapping[str, Recipe], sets: Mapping[str, SetConfig]) -> None:
    """Raise `UsageError` if an arm's set has another reward, or other tasks, than the first arm's."""
    measures = {}
    for arm, chosen in sets.items():
        tasks = set_tasks(recipes[arm], chosen)  # None: on the Hugging Face Hub
        asked = None if tasks is None else frozenset(task.question for task in tasks)
        measures[arm] = (set_reward(recipes[arm], chosen).table(), asked)
    (first, (reward, questions)), *others = measures.items()
    for arm, (other_reward, other_questions) in others:
        where, same = f"set {sets[arm].name!r} of arm {arm!r}", f"that of arm {first!r}"
        if other_reward != reward:
            raise UsageError(
                f"{where} is scored by {shown(other_reward)}, {same} by {shown(reward)}",
                code="not-comparable",
                cause="scores of two rewards are two quantities: their difference says nothing about the arms",
                fix="give the set one `reward` in all arms; each recipe's own [reward] then serves training alone",
            )
        if questions is not None and other_questions is not None and other_questions != questions:
            both = len(questions & other_questions)
            raise UsageError(
                f"{where} has {len(other_questions):,} tasks, {same} {len(questions):,}; {both:,} are in both",
                code="not-comparable",
                fix="evaluate all arms on the same tasks",
            )


# --- the work ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyResult:
    """A study's numbers, each a value a seed, and its files.

    `rows` are the arms' (and their `before`), `differences` those of the others less the first arm's, seed by seed.
    `curves` are success and new tokens over training: `metric` is "ARM: success", `name` the place.
    """

    first: str
    rows: Sequence[StudyRow]
    differences: Sequence[StudyRow]
    curves: Sequence[StudyRow]
    figures: Sequence[Path]


def run_study(
    planned: Plan,
    *,
    report: Callable[[str], None] = lambda text: None,
    progress: Callable[[], AbstractContextManager[Listener]] = lambda: nullcontext(api.print_warnings),
) -> StudyResult:
    """Train and evaluate what is missing, then write `study.json` and figures into the study's directory.

    `report` receives a line a run; `progress` makes the listener of each.
    """
    found: Seeds = {}
    for place, run in enumerate(planned.runs, 1):
        arm = run.arm
        report(f"{arm.name}, seed {run.seed} ({place} of {len(planned.runs)})")
        with name_place(f"arm {arm.name!r}"), progress() as listener:
            if run.trained:
                done = api.train(run.recipe, run.out, exist_ok=True, listener=listener)
            else:
                done = api.evaluate(arm.recipe, run.out, overrides=run.changes, listener=listener)
        evaluations = done.evaluations.read()
        if arm.before:
            found.setdefault(arm.before, []).append([result for result in evaluations if result.step == 0])
        found.setdefault(arm.name, []).append(evaluations)
    table, first = rows(planned.study, found), planned.runs[0].arm.name
    base = {row.metric: row.values for row in table if row.name == first}
    apart = [  # seed by seed: the same seed begins with the same weights and tasks
        replace(row, values=tuple(map(sub, row.values, base[row.metric])), interval=None, signed=True)
        for row in table
        if row.name != first
    ]
    curve, x_label = curves(found, planned.recipes)
    record = {"rows": table, "differences": apart, "curves": curve}
    atomic_write(planned.root / "study.json", (json.dumps(to_jsonable_python(record), indent=1) + "\n").encode())
    figures = _draw(planned, table, curve, x_label) if find_spec("matplotlib") else []  # `plan` has noted it
    return StudyResult(first=first, rows=table, differences=apart, curves=curve, figures=figures)


def _draw(planned: Plan, table: Sequence[StudyRow], curve: Sequence[StudyRow], x_label: str) -> list[Path]:
    """Draw each arm's numbers, successes in one chart, and the curves if there are any; returns the files."""
    study, figures = planned.study, [planned.root / "study.svg"]
    success = [name for name, metric in study.metrics.items() if metric.value == SUCCESS]
    groups = [*filter(None, [success]), *([name] for name in study.metrics if name not in success)]
    dots(figures[0], table, groups, study.title or study.name)
    if curve:
        figures.append(planned.root / "study-curves.svg")
        lines = {metric: {f"{arm}: {metric}": arm for arm in planned.recipes} for metric in (SUCCESS, TOKENS)}
        panels(figures[1], [Panel(title=name, x_label=x_label, lines=each) for name, each in lines.items()], curve)
    return figures


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


def curves(found: Seeds, recipes: Mapping[str, Recipe]) -> tuple[list[StudyRow], str]:
    """Success and new tokens over training, on the set that was evaluated most often; and what the places count.

    The place, a row's `name`, is the number of training trajectories, or the step if an arm does not count those.
    """
    evaluated = [
        (arm, (result.set_name, result.sampling, result.metric), result.step, result)
        for arm in recipes
        for evaluations in found[arm]
        for result in evaluations
        if result.step is not None
    ]
    most = Counter(key for _, key, _, _ in evaluated).most_common(1)
    drawn = [(arm, step, result) for arm, key, step, result in evaluated if [key] == [key for key, _ in most]]
    each = {arm: _trajectories_a_step(recipes[arm]) for arm, _, _ in drawn}
    counted, points = all(each.values()), dict[tuple[str, int], list[EvaluationResult]]()
    for arm, step, result in drawn:
        points.setdefault((arm, step * each[arm] if counted else step), []).append(result)
    curve = []
    for (arm, place), results in sorted(points.items(), key=lambda point: point[0][1]):
        tokens = tuple(result.completion_tokens / (result.tasks * result.trials) for result in results)
        values = tuple(result.success for result in results)
        curve.append(StudyRow(name=str(place), metric=f"{arm}: {SUCCESS}", values=values))
        curve.append(StudyRow(name=str(place), metric=f"{arm}: {TOKENS}", values=tokens, as_percent=False))
    enough = len({place for _, place in points}) > 2  # before and after alone are no curve
    return curve if enough else [], "training trajectories" if counted else "step"
