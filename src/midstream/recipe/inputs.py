"""Recipes of runs: read them, and check that a run continues with the inputs that it began with."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from midstream.components import own
from midstream.components.component import Table
from midstream.core.agent import lessons_digest
from midstream.core.errors import RunError
from midstream.core.text_file import parse_toml
from midstream.evaluation.session import has_results
from midstream.recipe.build import Build
from midstream.recipe.check import resolve
from midstream.recipe.files import to_toml
from midstream.recipe.schema import Recipe, parse_recipe
from midstream.runs import EvaluationInfo, RunDirectory
from midstream.runs.directory import damaged_recipe, write_info
from midstream.runs.info import collect_info, differing_settings


def run_table(run: RunDirectory) -> Table:
    """The resolved recipe of a run as it was written; files of your own that are gone are replaced by its copies."""
    try:
        return _with_copies(parse_toml(run.recipe()), run)
    except ValueError as error:
        raise damaged_recipe(run.recipe_path, error) from error


def _with_copies(table: Table, run: RunDirectory) -> Table:
    recorded = {component.reference: component for component in run.info().own}
    return own.from_copies(table, recorded, run.own_dir)


def run_recipe(run: RunDirectory) -> Recipe:
    """The resolved recipe of a run."""
    return parse_recipe(run_table(run))


def has_weights(run: RunDirectory) -> bool:
    """Whether a run has weights for its planner; a lesson run on a served model has none."""
    return run.info().kind != "lessons" or bool(run.checkpoints.steps())


def recipe_changes(run: RunDirectory) -> list[str]:
    """The settings in which a run's recipe.toml differs from the recipe that it began with, as "key: its own | now"."""
    began = _with_copies(parse_toml(to_toml(run.info().resolved)), run)
    return differing_settings(began, to_jsonable_python(run_table(run), inf_nan_mode="strings"))


def differing(began: RunDirectory, recipe: Recipe) -> list[str]:
    """The settings in which a run's recipe differs from another, apart from limits and the directory of code.

    Raises `RunError` if none does, but a component of your own has changed.
    """
    settings = resolve(recipe)
    both = own.portable(resolve(run_recipe(began))), own.portable(settings)
    for engine in (engine for table in both for engine in table["engines"].values()):
        # No setting: a run is the same one whatever a list of prices says by now.
        engine.pop("listed_price", None)
    old, new = ({key: value for key, value in table.items() if key != "budget"} for table in both)
    if old != new:
        return differing_settings(old, new) or ["..."]
    check_own(began, settings)
    return []


def create_run(root: Path, build: Build, asked: EvaluationInfo | None = None) -> RunDirectory:
    """Create a run directory that records the recipe of `build` and what it reads."""
    recipe = build.recipe
    info = collect_info(recipe.name, recipe.seed, build.resolved, asked, lessons_digest(build.lessons))
    return RunDirectory.create(root, info, to_toml(build.resolved))


def check_inputs(
    run: RunDirectory, build: Build, tasks: Mapping[str, str] | None = None, checkpoint: str | None = None
) -> None:
    """Check that a locked run continues with what it began with: results on both would be counted as one.

    `tasks` are the digests of an evaluation's sets, `checkpoint` that of its weights. Raises `RunError` for other
    lessons, tasks, weights or components of your own, or if the run is damaged.
    """
    run.require_whole()
    info, asked = run.info(), run.info().evaluation or EvaluationInfo()
    both = {
        f"the lessons in {build.resolved['agent'].get('lessons')}": (info.lessons, lessons_digest(build.lessons)),
        **{f"the tasks of set {name!r}": (asked.tasks.get(name), digest) for name, digest in (tasks or {}).items()},
        f"the weights of step {asked.step} of {asked.run}": (asked.checkpoint, checkpoint),
    }
    for what, (began, now) in both.items():
        if began != now:
            raise RunError(
                f"{what} have changed since {run.root} began: {began or 'none'}, now {now or 'none'}",
                code="inputs-changed",
                fix="restore them (RUN@VERSION of a lesson set never changes), or start over with another --out",
            )
    check_own(run, build.resolved, correct=True)


def check_own(run: RunDirectory, resolved: Mapping[str, Any], *, correct: bool = False) -> None:
    """Check that components of your own are those that a run began with. Raises `RunError` if not.

    A reward that has failed from the first run on may be corrected; with `correct`, of a locked run, it is recorded.
    """
    now, began = tuple(own.used(resolved)), run.info().own
    # By place: a run that was moved names its copies by another path.
    pairs = ((part, other) for part, other in zip_longest(now, began) if part is not None)
    changed = {part.reference for part, other in pairs if other is None or part.digest != other.digest}
    if changed and run.info().evaluation and not has_results(run):
        rewards = [resolved["reward"], *(chosen.get("reward", {}) for chosen in resolved["evaluation"]["sets"])]
        if changed <= set(own.references(rewards)):
            if correct:
                write_info(run, run.info().model_copy(update={"own": now}))
            return
    if changed:
        raise RunError(
            f"{', '.join(sorted(changed))} {'has' if len(changed) == 1 else 'have'} changed since {run.root} began",
            code="inputs-changed",
            fix=f"restore what has changed (a copy of a file is in {run.own_dir}), or start over with --out",
        )
