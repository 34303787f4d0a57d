"""`midstream solve`: one question, answered by the agent of a recipe or of a run, and watched while it happens."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from midstream.cli.commands import build_of, dry_run, has_weights, tell_library, use_policy, weights_digest
from midstream.core.errors import RecipeError, UsageError
from midstream.core.events import TurnListener
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.recipe.build import Build
from midstream.recipe.check import is_dialogues
from midstream.recipe.overrides import recipe_table
from midstream.recipe.schema import parse_recipe
from midstream.report.numbers import visible
from midstream.report.timeline import Screen, Timeline
from midstream.report.turn_rows import template_of
from midstream.rollout import Environment, rollout
from midstream.runs import RunDirectory


def solve(options: argparse.Namespace) -> int:
    """Answer one question; returns 0, or 1 where the run was lost to an error."""
    _check_question(options.question)
    run = RunDirectory.open(Path(options.planner)) if options.planner else None
    recipe = parse_recipe(recipe_table(options, run))
    if options.dry_run:
        return dry_run(recipe)
    named = options.planner or options.recipe or recipe.name
    if is_dialogues(recipe.tasks):
        raise RecipeError(
            f"the agent of recipe {recipe.name!r} answers no single question",
            cause=f"its tasks, tasks.type = {recipe.tasks.type!r}, are dialogues with functions of their own",
            fix=f"midstream eval {named}, then midstream show DIR TRAJECTORY",
        )
    if run is None and recipe.warm_start is not None:
        raise RecipeError(
            f"the {recipe.trained} of recipe {recipe.name!r} is not trained",
            cause="its weights come from a warm start and training",
            fix=f"midstream train {named} --out runs/mine, then midstream solve ... --planner runs/mine",
        )
    with build_of(recipe, run, options) as build:
        trajectory = _watched(build, run, options)
    if options.json:
        print(trajectory.model_dump_json())
    elif options.quiet and trajectory.answer is not None:
        print(visible(trajectory.answer))
    elif options.quiet and trajectory.error is None:
        print(f"no answer after {len(trajectory.turns)} turns", file=sys.stderr)
    if trajectory.error is not None:
        print(visible(f"error: {trajectory.error.type}: {trajectory.error.message}"), file=sys.stderr)
    return 0 if trajectory.status == "ok" else 1


class _Unjudged:
    """`core.protocols.Reward` of a question without a gold answer."""

    name, judged = "none", False

    def check(self, task: Task) -> None:
        pass

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        return Score(value=0.0)

    async def close(self) -> None:
        pass


def _watched(build: Build, run: RunDirectory | None, options: argparse.Namespace) -> Trajectory:
    """Load, run and show. The screen is taken before the weights are loaded, which is what takes long."""
    quiet = options.json or options.quiet
    shown = (
        None
        if quiet
        else Timeline(Screen(), options.question, build.sandbox_line, build.replay, template_of(build.resolved))
    )
    temperature, weights = options.temperature, ""
    with shown or nullcontext():
        if run is not None and has_weights(run):
            weights = weights_digest(run, use_policy(build, run))
            temperature = 0.0 if temperature is None else temperature
        environment = replace(build.environment(temperature=temperature), reward=_Unjudged())
        listener = shown.listen if shown else None
        trajectory = asyncio.run(_run(environment, options.question, build.recipe.seed, listener))
        if shown:
            shown.finish(trajectory)
    tell_library(build, weights)
    return trajectory


async def _run(environment: Environment, question: str, seed: int, listener: TurnListener | None) -> Trajectory:
    task = Task(id="question", question=question, answer="")
    [group] = await rollout(environment, [task], seed=seed, listener=listener)
    return group.trajectories[0].model_copy(update={"gold": None, "reward": None})


def _check_question(question: str) -> None:
    if not question.strip():
        raise UsageError(
            f"the question is empty: {question!r}",
            cause="nothing stands between the quotes",
            fix='e.g. midstream solve "What is 45 plus 17 ?"',
        )
