"""What a practice run came to: read from its directory, printed, and written as a report."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from midstream.core.errors import UsageError
from midstream.core.metrics import EvaluationResult, Spent
from midstream.core.trajectory import Trajectory
from midstream.evaluation import result_name
from midstream.evaluation.pairs import Evaluated, Paired, compare
from midstream.practice.budget import read_spent
from midstream.practice.commit import UpdateRecord, read_updates
from midstream.practice.history import History, Version
from midstream.practice.settings import BudgetConfig, PracticeConfig
from midstream.report import practice_page, practice_tables
from midstream.report.practice_data import Costs, PracticeData, Sources, learned
from midstream.report.turn_rows import template_of
from midstream.runs import RunDirectory

PRACTICE_LIMITS = """An interval says how far the choice of tasks could move a result, not how another seed of the whole
run would turn out. A lesson's effect was measured while its update was tested, among the lessons of that time; one that
was accepted because its estimate was high is likely to do a little less than the estimate says. What is proven is
proven for this agent: another model, prompt or tool makes the library unproven until it is validated again."""

SIMULATED = """The agent's model, or the one that writes lessons, is simulated: it follows rules that are known. What
this shows is that the loop, the gate and its statistics work; it says nothing about how much a real model gains."""


def is_practice(run: RunDirectory) -> bool:
    """Whether a run learned lessons rather than weights."""
    return run.info().evaluation is None and run.info().resolved.get("practice") is not None


def practice_data(run: RunDirectory, *, whole: bool = True) -> PracticeData:
    """All that is shown of a run; not `whole`: without the trajectories that only the report needs."""
    info, status = run.info(), run.status()
    config = PracticeConfig.model_validate(info.resolved["practice"])
    versions = History(run.library_dir).all()
    updates = read_updates(run)
    costs = read_spent(run.ledger_dir / "spent.jsonl")
    spent = _total(costs, updates)
    evaluations = run.evaluations.read()
    sides = _sides(run, evaluations)
    compared, notes = _compared(sides)
    return PracticeData(
        title=f"{info.recipe_name}, seed {info.seed}",
        run=shlex.quote(str(run.root)),
        status=status.state + (f": {status.message}" if status.message else ""),
        recipe_toml=run.recipe(),
        run_info={
            "recipe": info.recipe_name, "seed": info.seed, "midstream": info.midstream, "python": info.python,
            "platform": info.platform, "commit": info.git_commit or "-", "started": info.created_at,
        },
        updates_planned=config.updates if config.budget.updates is None else min(config.updates, config.budget.updates),
        gated=config.gate.enabled,
        budget=_limits(config.budget, spent),
        updates=updates,
        versions=versions,
        evaluations=evaluations,
        compared=compared,
        notes=notes,
        spent=spent,
        costs=costs,
        sources=_sources(run, versions) if whole else {},
        samples=_samples(sides, compared) if whole else [],
        template=template_of(info.resolved),
        limits=_limits_text(run),
        next_steps=_next_steps(run),
    )  # fmt: skip


def show_practice(run: RunDirectory, options: argparse.Namespace) -> None:
    """Print a run's updates, tests, library and test sets, or all of it as JSON."""
    data = practice_data(run, whole=False)
    if options.json:
        print(json.dumps({
            "run": str(run.root), "info": run.info().model_dump(), "status": run.status().model_dump(),
            "updates": [one.model_dump(mode="json") for one in data.updates],
            "library": data.library.model_dump(mode="json"),
            "evaluations": [one.model_dump() for one in data.evaluations], "compared": _records(data.compared),
        }))  # fmt: skip
        return
    console = Console()
    console.print(practice_tables.practice_view(data))
    if run.status().state in ("interrupted", "failed"):
        console.print(Text(f"go on with: midstream resume {data.run}"), soft_wrap=True)


def show_practice_result(run: RunDirectory, options: argparse.Namespace) -> None:
    """Print what the lessons changed on the test sets, the library and what it cost, and what to try next."""
    data, console = practice_data(run, whole=False), Console()
    if options.json:
        print(json.dumps({
            "run": str(run.root), "evaluations": [one.model_dump() for one in data.evaluations],
            "compared": _records(data.compared), "library": data.library.model_dump(mode="json"),
            "spent": data.spent.model_dump(),
        }))  # fmt: skip
        return
    console.print(practice_tables.result_view(data))
    console.print("\n[bold]Next[/bold]")
    for line in data.next_steps:
        console.print(Text(f"  {line}"), soft_wrap=True)


def write_practice_report(run: RunDirectory) -> None:
    """Write the run's self-contained HTML report."""
    practice_page.write_practice_report(run.report_path, practice_data(run))


def _limits_text(run: RunDirectory) -> str:
    """What the report does not show; of made-up models first of all that they are."""
    engines = run.info().resolved.get("engines")
    made_up = isinstance(engines, dict) and any(
        isinstance(one, dict) and one.get("type") == "simulated" for one in engines.values()
    )
    return " ".join([*(SIMULATED.split() if made_up else ()), *PRACTICE_LIMITS.split()])


def _records(compared: Sequence[Paired]) -> list[dict[str, object]]:
    return [one.model_dump(exclude={"differing"}) for one in compared]


def _sides(run: RunDirectory, evaluations: Sequence[EvaluationResult]) -> list[tuple[Evaluated, Evaluated]]:
    """The first and the last evaluation of every set and sampling that was evaluated at two steps."""
    by_key: dict[tuple[str, str], list[EvaluationResult]] = {}
    for one in evaluations:
        if one.step is not None:
            by_key.setdefault((one.set_name, one.sampling), []).append(one)
    return [
        (_evaluated(run, found[0]), _evaluated(run, found[-1]))
        for found in by_key.values()
        if found[0].step != found[-1].step
    ]


def _evaluated(run: RunDirectory, result: EvaluationResult) -> Evaluated:
    name = result_name(result.set_name, result.sampling, result.step)
    return Evaluated(name=result.policy, result=result, trajectories=run.trajectories.read_evaluation(name))


def _compared(sides: Sequence[tuple[Evaluated, Evaluated]]) -> tuple[list[Paired], list[str]]:
    """Every pair, and for those that cannot be compared the reason."""
    found: list[Paired] = []
    notes: list[str] = []
    for first, other in sides:
        try:
            found.append(compare(first, other))
        except UsageError as error:
            notes.append(f"{first.result.set_name} {first.result.sampling} is not compared: {error.what}")
    return found, notes


def _total(costs: Costs, updates: Sequence[UpdateRecord]) -> Spent:
    """All of it; where no account was left, what the last update knew of."""
    parts = list(costs.values()) or [one.spent for one in updates[-1:]]
    return Spent(
        rollouts=sum(one.rollouts for one in parts),
        calls=sum(one.calls for one in parts),
        tokens=sum(one.tokens for one in parts),
        cost_usd=sum(one.cost_usd for one in parts),
    )


def _limits(budget: BudgetConfig, spent: Spent) -> BudgetConfig:
    """The limits that the run began with, but for those that it has passed: they were raised when it was resumed."""
    raised = [
        name
        for name in ("rollouts", "tokens", "cost_usd")
        if (limit := getattr(budget, name)) is not None and getattr(spent, name) > limit
    ]
    return budget.model_copy(update=dict.fromkeys(raised))


def _sources(run: RunDirectory, versions: Sequence[Version]) -> Sources:
    """The rollouts that the library's lessons were drawn from, as far as their segments are still there."""
    wanted: dict[int, set[str]] = {}
    for one in learned(versions):
        wanted.setdefault(one.origin.update, set()).update(one.origin.trajectories)
    found: dict[tuple[int, str], Trajectory] = {}
    for step in run.trajectories.steps():
        if step in wanted:
            chosen = run.trajectories.read_chosen(step, wanted[step])
            found |= {(step, trajectory.id): trajectory for trajectory in chosen}
    return found


def _samples(sides: Sequence[tuple[Evaluated, Evaluated]], compared: Sequence[Paired]) -> list[tuple[str, Trajectory]]:
    """One test question without and with lessons: of those that differ the one with the largest gain."""
    for one in compared:
        gained = max(one.differing, key=lambda pair: pair.difference, default=None)
        first, other = next(side for side in sides if _key(side[0].result) == (one.set_name, one.sampling))
        if gained is not None:
            return [
                (label, next(each for each in side.trajectories if each.task_id == gained.task_id))
                for label, side in (("without lessons", first), ("with lessons", other))
            ]
    return []


def _key(result: EvaluationResult) -> tuple[str, str]:
    return result.set_name, result.sampling


def _next_steps(run: RunDirectory) -> list[str]:
    """Commands to try after a run."""
    root = shlex.quote(str(run.root))
    return [
        f"midstream library show {root}     # every lesson, where it came from and what it did",
        f"midstream library edit {root}     # change, pin or veto lessons",
        f"midstream compare {root}@0 {root} --tasks     # the test tasks that the lessons changed",
        f'midstream solve "..." --planner {root}     # this agent, with its lessons',
    ]
