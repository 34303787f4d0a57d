"""`midstream library validate`: does a library help this agent? Measured against no lessons, on fresh rollouts.

What comes of it is a new version with every lesson's effect and, if the library helps, whom it is proven for. Each
rollout is kept as it ends: a validation that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from midstream.cli.commands import has_weights, tell_sandbox, use_policy, weights_digest
from midstream.core.errors import InfrastructureError, UsageError
from midstream.core.metrics import Spent
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.evaluation import SetConfig
from midstream.practice.budget import Budget
from midstream.practice.ledger import RunLedger
from midstream.practice.library import Library, identity, render_modules
from midstream.practice.runner import Match, Runner
from midstream.practice.settings import BudgetConfig, GateConfig
from midstream.practice.similarity import leak_guard
from midstream.practice.validation import Validation
from midstream.practice.validation import validate as measure
from midstream.recipe.build import Build
from midstream.recipe.library import check_shown
from midstream.recipe.overrides import validation_table
from midstream.recipe.practisable import gate_set
from midstream.recipe.schema import Recipe, parse_recipe
from midstream.runs import RunDirectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Validated:
    """What came of it, for which agent, at what price; `notes` say which lessons copy a validation task."""

    found: Validation
    agent: str
    spent: Spent
    notes: Sequence[str]
    trajectories: Sequence[Trajectory]


def recipe_for(options: argparse.Namespace, run: RunDirectory | None) -> Recipe:
    """The agent that a library is tested for: that of `--recipe`, or the run's own."""
    if run is None and options.recipe is None:
        raise UsageError(
            f"{options.named} says of no agent that it should help",
            cause="a file holds lessons alone",
            fix=f"midstream library validate {options.named} --recipe RECIPE",
        )
    return parse_recipe(validation_table(options, None if options.recipe else run))


def most(recipe: Recipe) -> str:
    """How much is run at most, in words."""
    gate = _gate(recipe)
    return f"{2 * gate.test_pairs:,} rollouts to test the library, {2 * gate.bisect_pairs:,} for its lessons"


def validated(
    library: Library, recipe: Recipe, run: RunDirectory | None, kept: Path, options: argparse.Namespace
) -> Validated:
    """Test the library; `run` holds it, if any does. What is under way is in the directory `kept`."""
    if not library.rendered:
        raise UsageError(f"{options.named} has no lessons", cause="nothing can be tested", fix="add some, or learn")
    check_shown(recipe.agent, render_modules(library), str(options.named))
    budget = Budget(recipe.practice.budget if recipe.practice else BudgetConfig())
    own = run if options.recipe is None else None
    with Build(
        recipe,
        adapters=(own.root if own else Path()) / "adapters",
        unsafe=options.unsafe,
        record=options.record,
        replay=options.replay,
        budget=budget,
    ) as build:
        weights = weights_digest(own, use_policy(build, own)) if own and has_weights(own) else ""
        agent = identity(build.resolved, weights)
        tasks = build.set_tasks(_set(recipe))
        tell_sandbox(build, options)
        ledger = RunLedger(kept)
        try:
            found = _measured(build, library, tasks, ledger, agent, options)
        finally:
            ledger.close()
    guard = leak_guard(tasks)
    notes = [f"{one.id}: {reason}" for one in library.rendered if (reason := guard(one.text))]
    return Validated(found=found, agent=agent, spent=budget.spent(), notes=notes, trajectories=ledger.gathered(agent))


def _measured(
    build: Build, library: Library, tasks: Sequence[Task], ledger: RunLedger, agent: str, options: argparse.Namespace
) -> Validation:
    recipe = build.recipe
    with nullcontext() if options.quiet else Console(stderr=True).status("validating") as status:
        runner = Runner(build.environment(chosen=_set(recipe)), ledger, derive_seed(recipe.seed, "validation"))
        played = 0

        async def play(name: str, matches: Sequence[Match]) -> list[tuple[float, float] | None]:
            nonlocal played
            played += len(matches)
            if status is not None:
                status.update(f"validating: pair {played}")
            found = await runner.pairs(f"{agent}, seed {recipe.seed}: {name}", matches)
            if not any(found):
                raise _no_result(matches, ledger.gathered(agent))
            return found

        seed = derive_seed(recipe.seed, "validation tasks")
        return asyncio.run(measure(library, tasks=tasks, play=play, config=_gate(recipe), seed=seed))


def _no_result(matches: Sequence[Match], trajectories: Sequence[Trajectory]) -> InfrastructureError:
    first = next((one.error.message for one in trajectories if one.error), "")
    return InfrastructureError(
        f"none of {len(matches)} pairs of rollouts has a result on both sides; the first error:\n{first}",
        fix="see to that, then give the command again: what has a result is kept",
    )


def _gate(recipe: Recipe) -> GateConfig:
    return recipe.practice.gate if recipe.practice else GateConfig()


def _set(recipe: Recipe) -> SetConfig:
    """What the gate tests on, or as many tasks of the validation set as it would take."""
    chosen = recipe.evaluation.validation
    if recipe.practice is not None:
        return gate_set(chosen, recipe.practice)
    return chosen.model_copy(update={"count": GateConfig().tasks, "per_family": None})
