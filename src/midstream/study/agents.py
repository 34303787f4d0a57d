"""The study of agents: a modular and interleaved ones on the same tasks, tools, model size and training budget.

AgentFlow's paper (arXiv 2510.05592) sets Flow-GRPO's planner beside ToRL, one policy that is trained on the outcome
alone: its validation stalls and falls. Every arm is a recipe, trained into a run of its own over several seeds; what is
finished is not repeated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from midstream import api
from midstream.core.errors import RecipeError, UsageError
from midstream.core.metrics import EvaluationResult
from midstream.recipe.schema import Recipe, load_recipe
from midstream.report.study_panels import Panel, panels_svg
from midstream.report.study_tables import StudyRow, study_tables
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write
from midstream.study.options import chosen
from midstream.training.session import TRAINED, WARM

MODULAR = "flow-grpo-tiny"
# Label -> the recipe and what is changed in it.
ARMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "AgentFlow": (MODULAR, ()),
    "ARTIST": ("artist-tiny", ()),
    "ToRL": ("torl-tiny", ()),
    "ARTIST, shuffled": ("artist-tiny", ("training.shuffle_rewards=true",)),
}
SAMPLED, GREEDY = "T=1", "greedy"
SUCCESS, TOKENS = "success", "new tokens a task"


def study_agents(options: argparse.Namespace) -> int:
    """Train what is missing, write the numbers and the figure, print the tables."""
    if options.recipe != MODULAR:
        raise UsageError(
            f"--recipe {options.recipe} is none of the agents that are compared",
            cause="they share one world, one size of model and one budget",
            fix="leave --recipe out, or train two recipes and compare them: midstream compare RUN_A RUN_B",
        )
    root, console = Path(options.out), Console(stderr=True)
    labels = chosen(options, tuple(ARMS))
    recipes = {label: _recipe(label, seed=0, overrides=options.overrides) for label in labels}
    _require_equal_budgets(recipes)
    runs: dict[str, list[RunDirectory]] = {}
    for label in labels:
        for seed in range(options.seeds):
            recipe = _recipe(label, seed=seed, overrides=options.overrides)
            if not options.quiet:
                console.print(f"{label}, seed {seed}", markup=False)
            runs.setdefault(label, []).append(api.train(recipe, root / _directory(label, seed), exist_ok=True))
    rows = [row for label, found in runs.items() for row in _rows(label, found)]
    curve = [row for label, found in runs.items() for row in _validation(label, found, recipes[label])]
    record = [{"name": row.name, "metric": row.metric, "values": row.values} for row in (*rows, *curve)]
    root.mkdir(parents=True, exist_ok=True)
    atomic_write(root / "agents.json", (json.dumps(record, indent=1) + "\n").encode())
    atomic_write(root / "agents.svg", _figure(labels, curve).encode())
    if options.json:
        print(json.dumps(record))
        return 0
    for place, table in enumerate(study_tables(rows, "agent", "Modular and interleaved agents, equal budgets")):
        table.title = table.title if place == 0 else None
        Console().print(table)
    return 0


def _recipe(label: str, *, seed: int, overrides: Sequence[str]) -> Recipe:
    name, changes = ARMS[label]
    return load_recipe(name, [*changes, *overrides, f"seed={seed}"])


def _figure(labels: Sequence[str], curve: Sequence[StudyRow]) -> str:
    panels = [
        Panel(
            title=f"Validation, greedy: {what}",
            x_label="training trajectories",
            lines={f"{label}: {what}": label for label in labels},
        )
        for what in (SUCCESS, TOKENS)
    ]
    return panels_svg(panels, curve, "Validation over training")


def _directory(label: str, seed: int) -> str:
    return f"{label.lower().replace(', ', '-')}-s{seed}"


def _require_equal_budgets(recipes: Mapping[str, Recipe]) -> None:
    """Refuse to compare agents that were trained on different numbers of trajectories."""
    budgets = {
        label: _trajectories(recipe, recipe.training.steps) for label, recipe in recipes.items() if recipe.training
    }
    if len(set(budgets.values())) > 1:
        raise RecipeError(
            f"the agents would train on {', '.join(f'{count:,} ({label})' for label, count in budgets.items())} "
            "trajectories",
            cause="steps, tasks_per_step or group_size of their recipes differ",
            fix="set them alike, e.g. --set training.steps=100, or name with --only those that are",
        )


def _trajectories(recipe: Recipe, steps: int) -> int:
    assert recipe.training is not None
    return steps * recipe.training.tasks_per_step * recipe.training.group_size


def _rows(label: str, runs: Sequence[RunDirectory]) -> list[StudyRow]:
    """Held-out success before and after training, and what an answer took."""
    before = [_find(run, SAMPLED, WARM) for run in runs]
    after = {sampling: [_find(run, sampling, TRAINED) for run in runs] for sampling in (SAMPLED, GREEDY)}

    def row(
        metric: str, of: Sequence[EvaluationResult], value: Callable[[EvaluationResult], float], share: bool
    ) -> StudyRow:
        return StudyRow(name=label, metric=metric, values=tuple(map(value, of)), as_percent=share)

    trials = after[SAMPLED]
    return [
        row("before", before, lambda one: one.success, True),
        row("after", trials, lambda one: one.success, True),
        row("after, greedy", after[GREEDY], lambda one: one.success, True),
        row("tool errors", trials, lambda one: one.tool_use.error_rate, True),
        row("turns", trials, lambda one: one.turns_mean, False),
        row("new tokens", trials, _tokens, False),
    ]


def _validation(label: str, runs: Sequence[RunDirectory], recipe: Recipe) -> list[StudyRow]:
    """Success and length on the validation set, greedy, after every so many training trajectories."""
    found: dict[int, list[EvaluationResult]] = {}
    for run in runs:
        for one in run.evaluations.read():
            if one.set_name == recipe.evaluation.validation.name:
                found.setdefault(_trajectories(recipe, one.step or 0), []).append(one)
    rows = []
    for count, results in sorted(found.items()):
        success = tuple(one.success for one in results)
        rows.append(StudyRow(name=str(count), metric=f"{label}: {SUCCESS}", values=success))
        tokens = tuple(map(_tokens, results))
        rows.append(StudyRow(name=str(count), metric=f"{label}: {TOKENS}", values=tokens, as_percent=False))
    return rows


def _tokens(result: EvaluationResult) -> float:
    return result.completion_tokens / (result.tasks * result.trials)


def _find(run: RunDirectory, sampling: str, policy: str) -> EvaluationResult:
    """A run's evaluation of its first set."""
    done = run.evaluations.read()
    found = [one for one in done if (one.set_name, one.sampling, one.policy) == ("test", sampling, policy)]
    if not found:
        raise RecipeError(
            f"{run.root} has no evaluation of a set 'test', {sampling}, {policy}",
            cause="--set took it away",
            fix="leave evaluation.sets and evaluation.temperatures as they are",
        )
    return found[0]
