"""A modular agent and interleaved ones, compared at equal training budgets: tables, and validation over training.

AgentFlow's paper (arXiv 2510.05592) compares Flow-GRPO's planner with ToRL, one policy that is trained on the outcome
alone: its validation stalls and falls. `agents.toml` has the arms.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from midstream.core.errors import RecipeError
from midstream.recipe.schema import Recipe, load_recipe
from midstream.report.study_tables import StudyRow
from midstream.study import Arm, Seeds, StudyFile, chosen, plan, read_study, rows, run_arms
from studies.common import parser, print_tables, records, reporter, run, write_json
from studies.figures import Panel, panels

SUCCESS, TOKENS = "success", "new tokens a task"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study; returns the exit code."""
    return run(study_agents, parser(__doc__ or "", out="runs/study-agents").parse_args(arguments))


def study_agents(options: argparse.Namespace, study: StudyFile | None = None) -> None:
    """Train what is missing, write the numbers and the figure, print the tables."""
    study = study or read_study(Path(__file__).with_suffix(".toml"))
    labels = chosen([arm.name for arm in study.arms], options.only)
    recipes = {arm.name: _recipe(arm, options.overrides) for arm in study.arms if arm.name in labels}
    require_equal_budgets(recipes)
    planned = plan(study, options.out, seeds=options.seeds, only=labels, overrides=options.overrides)
    found = run_arms(planned, report=reporter(options))
    table, curve = rows(study, found), validation(found, recipes)
    record = records([*table, *curve])
    write_json(options.out / "agents.json", record)
    panels(
        options.out / "agents.svg",
        [
            Panel(
                title=f"Validation, greedy: {metric}",
                x_label="training trajectories",
                lines={f"{label}: {metric}": label for label in labels},
            )
            for metric in (SUCCESS, TOKENS)
        ],
        curve,
    )
    if options.json:
        print(json.dumps(record))
    else:
        print_tables({"agents": table}, {"agents": (study.title, "agent")})


def _recipe(arm: Arm, overrides: Sequence[str]) -> Recipe:
    return load_recipe(arm.recipe, [*arm.overrides, *overrides])


def require_equal_budgets(recipes: Mapping[str, Recipe]) -> None:
    """Refuse to compare agents that are trained on different numbers of trajectories."""
    budgets = {
        label: _trajectories(recipe, recipe.training.steps) for label, recipe in recipes.items() if recipe.training
    }
    if len(set(budgets.values())) > 1:
        counts = ", ".join(f"{count:,} ({label})" for label, count in budgets.items())
        raise RecipeError(
            f"the agents would train on {counts} trajectories",
            code="setting-conflict",
            cause="steps, tasks_per_step or group_size of their recipes differ",
            fix="make them equal, e.g. --set training.steps=100, or name with --only those that are",
        )


def _trajectories(recipe: Recipe, steps: int) -> int:
    assert recipe.training is not None
    return steps * recipe.training.tasks_per_step * recipe.training.group_size


def validation(found: Seeds, recipes: Mapping[str, Recipe]) -> list[StudyRow]:
    """Success and length on the validation set, greedy, after every so many training trajectories."""
    curve = []
    for label, seeds in found.items():
        by_count: dict[int, list[tuple[float, float]]] = {}
        for result in (result for evaluations in seeds for result in evaluations):
            if result.set_name == recipes[label].evaluation.validation.name:
                tokens = result.completion_tokens / (result.tasks * result.trials)
                count = _trajectories(recipes[label], result.step or 0)
                by_count.setdefault(count, []).append((result.success, tokens))
        for count, pairs in sorted(by_count.items()):
            success, tokens = zip(*pairs, strict=True)
            curve.append(StudyRow(name=str(count), metric=f"{label}: {SUCCESS}", values=success))
            curve.append(StudyRow(name=str(count), metric=f"{label}: {TOKENS}", values=tokens, as_percent=False))
    return curve


if __name__ == "__main__":
    sys.exit(main())
