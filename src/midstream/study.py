"""A study: recipes over several seeds, compared by their held-out success with intervals.

Runs already finished in the study's directory are read, not repeated; one that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from midstream.build import Build
from midstream.commands import evaluate_sets, train_quietly
from midstream.config import load_recipe
from midstream.core.errors import RecipeError, UsageError
from midstream.core.metrics import EvaluationResult
from midstream.core.progress import NoProgress
from midstream.report import tables
from midstream.report.study import study_svg
from midstream.runs.files import atomic_write

MAIN = "flow-grpo-tiny"
STUDIES = {
    "controls": (
        MAIN,
        "control-random",
        "control-supervised",
        "control-supervised-successes",
        "ablation-final-turn-credit",
        "ablation-advantage-over-turns",
        "control-shuffled-rewards",
    )
}
WARM_START, MAIN_LABEL = "warm start only", "Flow-GRPO"
SUCCESS, HABITS = ("sampled", "greedy", "three turns"), ("tool errors", "distractor")
THREE_TURNS = ("sum", "diff", "compare")


def run_study(options: argparse.Namespace) -> int:
    """Train and evaluate every recipe of a study on every seed, write the results, print the table."""
    root, console = Path(options.out), Console(stderr=True)
    recipes = options.only or STUDIES[options.name]
    unknown = sorted(set(recipes) - set(STUDIES[options.name]))
    if unknown:
        known = ", ".join(STUDIES[options.name])
        raise RecipeError(f"{unknown[0]!r} is not part of the study {options.name!r}", mend=f"name some of: {known}")
    if options.seeds < 1:
        raise UsageError(f"--seeds {options.seeds} trains nothing", cause="it is below 1", mend="e.g. --seeds 3")
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
            Console().print(tables.study_table([row for row in rows if row.metric in metrics]))
    return 0


def _one(root: Path, name: str, seed: int, overrides: list[str]) -> dict[str, list[EvaluationResult]]:
    """Label -> evaluations after training; of the main recipe those of its warm start too."""
    recipe = load_recipe(name, [*overrides, f"seed={seed}"])
    if recipe.agent.planner["type"] == "clumsy":
        with Build(recipe) as build:
            return {recipe.description: evaluate_sets(build, NoProgress(), None)}
    evaluations = train_quietly(root / f"{name}-s{seed}", recipe).read_evaluations()
    last = max(one.step or 0 for one in evaluations)
    labelled = {MAIN_LABEL if name == MAIN else recipe.description: [one for one in evaluations if one.step == last]}
    if name == MAIN:
        labelled = {WARM_START: [one for one in evaluations if one.step == 0], **labelled}
    return labelled


def _rows(label: str, seeds: list[list[EvaluationResult]]) -> list[tables.StudyRow]:
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
    return [tables.StudyRow(name=label, metric=metric, values=values) for metric, values in metrics.items()]


def _find(evaluations: list[EvaluationResult], sampling: str) -> EvaluationResult:
    found = next((one for one in evaluations if one.set_name == "test" and one.sampling == sampling), None)
    if found is None or not found.by_family.keys() >= set(THREE_TURNS):
        raise RecipeError(
            f"the study needs a set 'test' of the families {', '.join(THREE_TURNS)}, evaluated {sampling}",
            cause="--set took it away",
            mend="leave evaluation.sets, evaluation.temperatures and tasks as they are",
        )
    return found
