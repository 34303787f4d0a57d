"""The study of controls: recipes over several seeds, compared by their held-out success with intervals."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from midstream import api
from midstream.core.errors import RecipeError, UsageError
from midstream.core.metrics import EvaluationResult
from midstream.recipe.schema import load_recipe
from midstream.report.study import study_svg
from midstream.report.study_tables import StudyRow, study_table
from midstream.runs.files import atomic_write
from midstream.study.options import chosen

MAIN = "flow-grpo-tiny"
CONTROLS = (
    MAIN,
    "control-random",
    "control-supervised",
    "control-supervised-successes",
    "ablation-final-turn-credit",
    "ablation-advantage-over-turns",
    "control-shuffled-rewards",
)
WARM_START, MAIN_LABEL = "warm start only", "Flow-GRPO"
SUCCESS, HABITS = ("sampled", "greedy", "three turns"), ("tool errors", "distractor")
THREE_TURNS = ("sum", "diff", "compare")


def study_controls(options: argparse.Namespace) -> int:
    """Train and evaluate every recipe of a study on every seed, write the results, print the table."""
    root, console = Path(options.out), Console(stderr=True)
    recipes = chosen(options, CONTROLS)
    if options.recipe != MAIN:
        raise UsageError(
            f"--recipe {options.recipe} has no controls",
            cause=f"they are recipes made for {MAIN}",
            fix="leave --recipe out, or compare its planner: midstream study planner",
        )
    results: dict[str, list[list[EvaluationResult]]] = {}
    for name in recipes:
        for seed in range(options.seeds):
            if not options.quiet:
                console.print(f"{name}, seed {seed}", markup=False)
            for label, evaluations in _one(root, name, seed, options.overrides).items():
                results.setdefault(label, []).append(evaluations)
    rows = [row for label, seeds in results.items() for row in _rows(label, seeds)]
    record = [{"name": row.name, "metric": row.metric, "values": row.values} for row in rows]
    root.mkdir(parents=True, exist_ok=True)
    atomic_write(root / "study.json", (json.dumps(record, indent=1) + "\n").encode())
    atomic_write(root / "study.svg", study_svg(rows).encode())
    if options.json:
        print(json.dumps(record))
    else:
        for metrics in (SUCCESS, HABITS):  # side by side they would not fit a terminal
            Console().print(study_table([row for row in rows if row.metric in metrics]))
    return 0


def _one(root: Path, name: str, seed: int, overrides: list[str]) -> dict[str, list[EvaluationResult]]:
    """Label -> evaluations after training; of the main recipe those of its warm start too."""
    recipe = load_recipe(name, [*overrides, f"seed={seed}"])
    if recipe.modules[recipe.trained].type == "clumsy":
        return {recipe.description: api.evaluate_sets(recipe)}
    evaluations = api.train(recipe, root / f"{name}-s{seed}", exist_ok=True).evaluations.read()
    last = max(one.step or 0 for one in evaluations)
    labelled = {MAIN_LABEL if name == MAIN else recipe.description: [one for one in evaluations if one.step == last]}
    if name == MAIN:
        labelled = {WARM_START: [one for one in evaluations if one.step == 0], **labelled}
    return labelled


def _rows(label: str, seeds: list[list[EvaluationResult]]) -> list[StudyRow]:
    """Success on the test set, sampled and greedy, the three-turn families, tool errors, the distractor's share."""
    sampled = [_find(evaluations, "T=1") for evaluations in seeds]
    greedy = [_find(evaluations, "greedy") for evaluations in seeds]
    metrics = {
        "sampled": tuple(one.success for one in sampled),
        "greedy": tuple(one.success for one in greedy),
        "three turns": tuple(
            sum(one.by_family[family].success for family in THREE_TURNS) / len(THREE_TURNS) for one in greedy
        ),
        "tool errors": tuple(one.tool_use.error_rate for one in sampled),
        "distractor": tuple(one.tool_use.share.get("guess", 0.0) for one in sampled),
    }
    return [StudyRow(name=label, metric=metric, values=values) for metric, values in metrics.items()]


def _find(evaluations: list[EvaluationResult], sampling: str) -> EvaluationResult:
    found = next((one for one in evaluations if one.set_name == "test" and one.sampling == sampling), None)
    if found is None or not found.by_family.keys() >= set(THREE_TURNS):
        raise RecipeError(
            f"the study needs a set 'test' of the families {', '.join(THREE_TURNS)}, evaluated {sampling}",
            cause="--set took it away",
            fix="leave evaluation.sets, evaluation.temperatures and tasks as they are",
        )
    return found
