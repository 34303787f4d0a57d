"""The data and the report of a practice run, read from its directory."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from midstream.core.errors import UsageError
from midstream.core.metrics import EvaluationResult, Spent
from midstream.core.trajectory import Trajectory
from midstream.evaluation import result_name
from midstream.evaluation.pairs import Evaluated, Paired, compare
from midstream.practice.budget import read_spent
from midstream.practice.commit import read_updates
from midstream.practice.history import History, Version
from midstream.practice.settings import PracticeConfig
from midstream.report import practice_page
from midstream.report.practice_data import PracticeData, Sources, learned
from midstream.report.turn_rows import template_of
from midstream.runs import RunDirectory

PRACTICE_LIMITS = """An interval shows how far the choice of tasks could move a result, not how another seed of the
whole run would turn out. A lesson's effect was measured while its update was tested, among the lessons of that time;
one that was accepted because its estimate was high is likely to do a little less than the estimate says. What is proven
is proven for this agent: another model, prompt or tool makes the library unproven until it is validated again."""

SIMULATED = """The agent's model, or the one that writes lessons, is simulated: it follows rules that are known. What
this shows is that the loop, the gate and its statistics work; it says nothing about how much a real model gains."""


def practice_data(run: RunDirectory, *, whole: bool = True) -> PracticeData:
    """All that is shown of a run; not `whole`: without the trajectories that only the report needs."""
    info, status = run.info(), run.status()
    config = PracticeConfig.model_validate(info.resolved["practice"])
    versions, updates, evaluations = History(run.library_dir).all(), read_updates(run), run.evaluations.read()
    costs = read_spent(run.ledger_dir / "spent.jsonl")
    # Without an account of costs, the last update knows what was spent until then.
    parts = list(costs.values()) or [update.spent for update in updates[-1:]]
    spent = Spent(
        rollouts=sum(part.rollouts for part in parts),
        calls=sum(part.calls for part in parts),
        tokens=sum(part.tokens for part in parts),
        cost_usd=sum(part.cost_usd for part in parts),
    )
    # A limit that was passed was raised when the run was resumed, and the new one is not on record.
    limits = config.budget.model_dump(include={"rollouts", "tokens", "cost_usd"}, exclude_none=True)
    raised = [name for name, limit in limits.items() if getattr(spent, name) > limit]
    sides = _first_and_last(run, evaluations)
    compared: list[Paired] = []
    notes: list[str] = []
    for first, last in sides:
        try:
            compared.append(compare(first, last))
        except UsageError as error:
            notes.append(f"{first.result.set_name} {first.result.sampling} is not compared: {error.what}")
    engines: Any = info.resolved.get("engines", {})
    simulated = any(engine.get("type") == "simulated" for engine in engines.values())
    root = shlex.quote(str(run.root))
    return PracticeData(
        title=f"{info.recipe_name}, seed {info.seed}",
        run=root,
        status=status.state + (f": {status.message}" if status.message else ""),
        recipe_toml=run.recipe(),
        run_info={
            "recipe": info.recipe_name, "seed": info.seed, "midstream": info.midstream, "python": info.python,
            "platform": info.platform, "commit": info.git_commit or "-", "started": info.created_at,
        },
        updates_planned=config.updates if config.budget.updates is None else min(config.updates, config.budget.updates),
        gated=config.gate.enabled,
        budget=config.budget.model_copy(update=dict.fromkeys(raised)),
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
        limits=" ".join(f"{SIMULATED if simulated else ''} {PRACTICE_LIMITS}".split()),
        next_steps=[
            f"midstream library show {root}     # every lesson, where it came from and what it did",
            f"midstream library edit {root}     # change, pin or veto lessons in your editor",
            f"midstream compare {root}@0 {root} --tasks     # the test tasks that the lessons changed",
            f'midstream solve "..." --planner {root}     # this agent, with its lessons',
        ],
    )  # fmt: skip


def write_practice_report(run: RunDirectory) -> None:
    """Write the run's self-contained HTML report."""
    practice_page.write_practice_report(run.report_path, practice_data(run))


def _first_and_last(run: RunDirectory, evaluations: Sequence[EvaluationResult]) -> list[tuple[Evaluated, Evaluated]]:
    """The first and the last evaluation of every set and sampling that was evaluated at two steps."""
    by_key: dict[tuple[str, str], list[EvaluationResult]] = {}
    for result in evaluations:
        if result.step is not None:
            by_key.setdefault((result.set_name, result.sampling), []).append(result)

    def evaluated(result: EvaluationResult) -> Evaluated:
        name = result_name(result.set_name, result.sampling, result.step)
        return Evaluated(name=result.policy, result=result, trajectories=run.trajectories.read_evaluation(name))

    ends = [(results[0], results[-1]) for results in by_key.values()]
    return [(evaluated(first), evaluated(last)) for first, last in ends if first.step != last.step]


def _sources(run: RunDirectory, versions: Sequence[Version]) -> Sources:
    """The rollouts that the library's lessons were drawn from, as far as their segments are still there."""
    wanted: dict[int, set[str]] = {}
    for lesson in learned(versions):
        wanted.setdefault(lesson.origin.update, set()).update(lesson.origin.trajectories)
    found: dict[tuple[int, str], Trajectory] = {}
    for step in run.trajectories.steps():
        if step in wanted:
            found |= {
                (step, trajectory.id): trajectory for trajectory in run.trajectories.read_chosen(step, wanted[step])
            }
    return found


def _samples(sides: Sequence[tuple[Evaluated, Evaluated]], compared: Sequence[Paired]) -> list[tuple[str, Trajectory]]:
    """One test question without and with lessons: of those that differ the one with the largest gain."""
    by_key = {(first.result.set_name, first.result.sampling): (first, last) for first, last in sides}
    for paired in compared:
        gained = max(paired.differing, key=lambda pair: pair.difference, default=None)
        if gained is not None:
            first, last = (
                next(trajectory for trajectory in side.trajectories if trajectory.task_id == gained.task_id)
                for side in by_key[paired.set_name, paired.sampling]
            )
            return [("without lessons", first), ("with lessons", last)]
    return []
