"""What the rounds of a strategy did in an evaluation: probabilities, accuracies, advice.

    python -m studies.refine RUN [--budget N] [--out DIRECTORY]

Every answer of every chain and round is scored with the evaluation's own rewards; `refinement.py` estimates.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from pydantic_core import to_json
from rich.console import RenderableType
from rich.text import Text

from midstream.cli import options as shared
from midstream.components.component import RewardConfig
from midstream.components.tables import parse_strategy
from midstream.core.errors import MidstreamError, RunError, UnsupportedError, UsageError
from midstream.core.metrics import EvaluationResult
from midstream.core.source import Reward
from midstream.core.task import Task
from midstream.core.terminal import Terminal
from midstream.core.trajectory import Trajectory
from midstream.evaluation.estimates import Interval
from midstream.process import event_loop
from midstream.recipe.build import Build
from midstream.recipe.check import set_reward
from midstream.recipe.inputs import run_recipe
from midstream.report.numbers import counted, gains, percent
from midstream.rewards.votes import answer_key
from midstream.rollout import run_concurrently
from midstream.runs import RunDirectory
from midstream.runs.files import atomic_write, storage_errors
from midstream.runs.segments import result_name
from midstream_extra.dser import Dser
from midstream_extra.study_tables import StudyRow
from studies.charts import Panel, panels
from studies.common import plain_table
from studies.refinement import Attempt, RefinementStudy, study_of


def study_refinement(
    run: RunDirectory | str | Path, *, budget: int | None = None, out: str | Path | None = None
) -> list[RefinementStudy]:
    """Estimate, for each set of a finished evaluation with a strategy, what refinement does, and advise.

    Args:
        run: the evaluation, or its path.
        budget: the agent runs of a task that K and T may take; by default those of the evaluation's strategy.
        out: the directory for refinement.json and a figure of each set, refinement-SET.svg, which needs matplotlib.

    Raises:
        RunError: the run is no finished evaluation with a strategy, or its tasks have changed.
        RewardError: a judge or scorer failed.
    """
    run = run if isinstance(run, RunDirectory) else RunDirectory.open(Path(run))
    recipe, asked = run_recipe(run), run.info().evaluation
    strategy = parse_strategy(recipe.evaluation.strategy) if recipe.evaluation.strategy else None
    if asked is None or not isinstance(strategy, Dser):
        raise RunError(
            f"{run.root} is not an evaluation with the strategy dser",
            code="wrong-kind-of-run",
            fix="midstream eval ... --strategy dser:K=8,T=4,early_stop=no --out RUN, then python -m studies.refine RUN",
        )
    if budget is not None and budget < 1:
        raise UsageError(f"--budget {budget}", code="setting-range", fix="give the agent runs of a task: 1 or more")
    results = run.evaluations.read()
    if not results:
        raise RunError(f"{run.root} has no results yet", code="no-results", fix=f"midstream resume {run.root}")
    build, studies = Build(recipe, unsafe=asked.unsafe), list[RefinementStudy]()
    with event_loop(build) as run_coroutine:
        for result in results:
            [chosen] = [
                each for each in recipe.evaluation.sets if each.name == result.set_name.removesuffix("-learned")
            ]
            component = set_reward(recipe, chosen)
            if isinstance(component.config, RewardConfig) and component.config.of_stream:
                raise UnsupportedError(
                    f"set {chosen.name!r} is scored by {component.type!r}, which reads whole streams",
                    code="reward-does-not-fit",
                    cause="the answer of one round has no stream of its own",
                    fix="evaluate with a reward of answers, e.g. --reward exact_match",
                )
            tasks, reward = {task.id: task for task in build.set_tasks(chosen)}, build.reward(component)
            segment = run.trajectories.open(result_name(result.set_name, result.sampling))
            attempts, agent_runs, left_out = list[list[Attempt]](), list[int](), 0
            for task_id, group in groupby(segment, key=lambda trajectory: trajectory.task_id):
                ended = list(group)
                usable = [trajectory for trajectory in ended if trajectory.status == "ok" and trajectory.refinement]
                left_out += len(ended) - len(usable)
                if usable:
                    task = _same_task(run, tasks.get(task_id), usable[0])
                    attempts.append(run_coroutine(_attempts(task, usable, reward)))
                    agent_runs += [each.refinement.agent_runs for each in usable if each.refinement]
            if not attempts:
                raise RunError(
                    f"no attempt at set {result.set_name!r} has a result",
                    code="no-results",
                    fix=f"midstream resume {run.root} --retry-errors",
                )
            study = study_of(
                attempts, strategy, budget=budget or strategy.agent_runs, runs=sum(agent_runs) / len(agent_runs)
            )
            about = {"set_name": result.set_name, "sampling": result.sampling, "metric": result.metric}
            studies.append(study.model_copy(update={**about, "left_out": left_out}))
    if out is not None:
        _write(Path(out), studies, results)
    return studies


def _same_task(run: RunDirectory, task: Task | None, trajectory: Trajectory) -> Task:
    """The task that a trajectory was of. Raises `RunError` if the set no longer has it."""
    if task is None or (task.question, task.answer) != (trajectory.question, trajectory.gold):
        raise RunError(
            f"task {trajectory.task_id!r} has changed since {run.root} ended",
            code="inputs-changed",
            fix="restore it, or evaluate again with another --out",
        )
    return task


async def _attempts(task: Task, trajectories: Sequence[Trajectory], reward: Reward) -> list[Attempt]:
    """The chains of a task's trajectories; each distinct answer is scored once, and is right if its score is 1."""
    chains = {trajectory.id: trajectory.refinement.answers for trajectory in trajectories if trajectory.refinement}
    distinct = dict.fromkeys(answer for each in chains.values() for chain in each for answer in chain if answer)

    async def is_right(answer: str) -> bool:
        # Of an agent run inside, only the answer is known: the rest stands for all of its trajectory.
        given = trajectories[0].model_copy(update={"answer": answer, "final": answer, "reward": None})
        return (await reward.score(task, given)).value >= 1

    scores = await run_concurrently(is_right(answer) for answer in distinct)
    right = dict(zip(distinct, scores, strict=True))
    return [
        [[(answer_key(task.question, answer), right.get(answer or "", False)) for answer in chain] for chain in each]
        for each in chains.values()
    ]


def _write(out: Path, studies: Sequence[RefinementStudy], results: Sequence[EvaluationResult]) -> None:
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    atomic_write(out / "refinement.json", to_json(studies, indent=2) + b"\n")
    for study, result in zip(studies, results, strict=True):
        chart = Panel(
            title=f"{study.set_name} {study.sampling}, {study.strategy}",
            x_label="round",
            lines={"average": "Avg@K", "expected": "Avg@K, closed form", "consensus": "Cons@K"},
        )
        rows = [
            StudyRow(name=str(each.number), metric=metric, values=(value,), interval=interval)
            for each in study.rounds
            for metric, value, interval in (
                ("average", each.average, each.interval),
                ("expected", each.expected, None),
                ("consensus", each.consensus, each.consensus_interval),
            )
        ]
        panels(out / f"refinement-{result_name(result.set_name, result.sampling)}.svg", [chart], rows)


# --- the screen -------------------------------------------------------------------------------------------------------


def refinement_screen(study: RefinementStudy) -> Iterator[RenderableType]:
    """The parts of the screen of one set."""
    title = f"{study.set_name} {study.sampling}, {study.strategy}: {counted(study.tasks, 'task')}"
    table = plain_table(Text(title), right=["round", "chains", "Avg@K", "95%", "closed form", "Cons@K", "95%"])
    for each in study.rounds:
        table.add_row(
            str(each.number),
            f"{each.chains:,}",
            percent(each.average),
            _range(each.interval),
            percent(each.expected),
            percent(each.consensus),
            _range(each.consensus_interval),
        )
    yield table
    facts = plain_table(left=["", "", "95%", ""])
    facts.show_header = False
    for name, estimate, of in (
        ("a_0, first answer right", study.start, "chains"),
        ("p, wrong to right", study.improvement, "rounds"),
        ("q, right to wrong", study.degradation, "rounds"),
    ):
        known = f"{estimate.trials:,} {of}, effect {estimate.design_effect:.2f}"
        facts.add_row(name, percent(estimate.value), _range(estimate.interval), known)
    facts.add_row("p - q", "", gains(study.gain), "points")
    facts.add_row("limit, p / (p + q)", percent(study.limit), _range(study.limit_interval), "")
    facts.add_row("limit - a_0", "", gains(study.lift), "points")
    facts.add_row("speed, |1 - p - q|", f"{study.speed:.2f}", "", "of the gap is left")
    facts.add_row("agent runs of a task", f"{study.agent_runs:.1f}", "", "at most K(1 + 2T)")
    yield facts
    plan, votes = (
        f"{percent(plan.expected)} expected with dser:K={plan.K},T={plan.T}: {counted(plan.agent_runs, 'agent run')}"
        for plan in (study.plan, study.votes_only)
    )
    notes = [
        f"scored   by {study.metric}; an answer is right if its score is 1",
        f"advice   {study.advice}: {study.reason}",
        f"budget   {counted(study.budget, 'agent run')} of a task; wrong answers are expected to agree",
        f"best     {plan}",
        f"no round {votes}",
        "effect   the factor by which differences between tasks raise the variance",
    ]
    if study.cut_short:
        ended = f"{study.cut_short:,} of {study.chains:,} chains ended before their last round"
        notes.append(f"warning  {ended}, and the others may differ from them;")
        notes.append("         early_stop=no in the strategy and a later rollout.deadline_s let all end")
    if study.left_out:
        notes.append(f"left out {counted(study.left_out, 'attempt')} without a result")
    yield Text("\n".join(notes))


def _range(interval: Interval) -> str:
    return "–".join(f"{end * 100:.1f}" for end in interval)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what refinement does in an evaluation, and with `--out` write it there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", help="an evaluation with --strategy")
    parser.add_argument("--budget", type=int, metavar="N", help="advise for N agent runs of a task")
    parser.add_argument("--out", help="write refinement.json and the figures here")
    shared.add(parser, *shared.OUTPUT)
    options = parser.parse_args(arguments)
    try:
        with shared.spinner("scoring every answer", silent=options.quiet or options.json):
            studies = study_refinement(options.run, budget=options.budget, out=options.out)
    except MidstreamError as error:
        print(f"error[{error.code}]: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps([study.model_dump(mode="json") for study in studies]))
        return 0
    console = Terminal()
    for study in studies:
        if options.quiet:
            console.print(f"{study.set_name} {study.sampling}: {study.advice}", highlight=False)
        else:
            for part in refinement_screen(study):
                console.print(part)
    if options.out and not options.quiet:
        console.print(Text(f"refinement.json and figures: {options.out}"), soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
