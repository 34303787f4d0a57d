"""`midstream show RUN [TRAJECTORY]`: the numbers of a run, its evaluated tasks, one trajectory."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from midstream.cli import options as shared
from midstream.core.errors import RunError
from midstream.report import blocks
from midstream.report.blocks import text
from midstream.report.draw import show
from midstream.report.evaluation import evaluated_trajectories, task_list, task_records
from midstream.report.numbers import counted, nothing_learned
from midstream.report.run import next_steps, run_blocks
from midstream.report.trajectory import template_of, trajectory_blocks
from midstream.runs import RunDirectory, results
from midstream.runs.journal import skip_damage, warn_of_damage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `show`."""
    parser.add_argument("run", help="run directory")
    parser.add_argument("trajectory", nargs="?", help="id of a trajectory, or its beginning")
    parser.add_argument("--tasks", action="store_true", help="list the evaluated tasks: score, answer, gold answer")
    parser.add_argument("--wrong", action="store_true", help="list those that are not right")
    shared.add(parser, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Show what the options name."""
    run = RunDirectory.open(Path(options.run))
    info = run.info()
    if options.trajectory:
        trajectory = run.find_trajectory(options.trajectory)
        if options.json:
            print(trajectory.model_dump_json())
        else:
            show(trajectory_blocks(trajectory, template_of(info.resolved)))
    elif options.tasks or options.wrong:
        _show_tasks(run, wrong=options.wrong, as_json=options.json)
    elif options.json or info.kind == "evaluation":
        show_done(run, as_json=options.json)
    else:
        show([*run_blocks(run), *_resume(run)])
    return 0


def show_result(run: RunDirectory, *, short: bool = False) -> None:
    """Print what changed from before to after learning; if `short`, of the test set's success alone."""
    results = run_blocks(run, "results")
    nothing = nothing_learned([step.no_contrast for step in run.metrics.read(skip_damage)], "step")
    show([text(nothing, "warn"), *(results[:1] if short else results)])
    if run.info().kind == "lessons":
        show([*run_blocks(run, "lessons"), text("Next", "strong"), blocks.code("\n".join(next_steps(run)))])


def show_done(run: RunDirectory, *, as_json: bool) -> None:
    """Print what an evaluation found; of a run that learned what changed, and where the report is."""
    if as_json:
        print(json.dumps(_record(run)))
    elif run.info().kind == "evaluation":
        _show_evaluation(run)
    else:
        show_result(run)
        show([blocks.code(f"\nReport: {run.report_path}")])


def _show_evaluation(run: RunDirectory) -> None:
    """Print what is evaluated, the numbers of every set that is done, and the progress of the current one."""
    command = f"midstream resume {shlex.quote(str(run.root))} --retry-errors"
    lost = any(result.errors for result in run.evaluations.read(skip_damage))
    waiting = Counter(record.set for record in results.read(run.results_path, warn_of_damage))
    show(
        [
            *run_blocks(run),
            *(text(f"under way: {name}, {counted(count, 'run')} so far") for name, count in waiting.items()),
            blocks.code(f"to run again what ended in errors: {command}" if lost else ""),
            *_resume(run),
        ]
    )


def _show_tasks(run: RunDirectory, *, wrong: bool, as_json: bool) -> None:
    """Print the tasks of the last evaluations, or only those that are not right."""
    found = run.evaluations.read(skip_damage)
    last = max((result.step or 0 for result in found), default=0)
    chosen = [result for result in found if run.info().kind == "evaluation" or result.step == last]
    if not chosen:
        fix = f"midstream show {shlex.quote(str(run.root))} shows its status"
        raise RunError(f"{run.root} has no finished evaluation", code="no-evaluation", fix=fix)
    # Nothing is held: an evaluation may have 100,000 runs.
    separator = "["
    for result in chosen:
        evaluated = evaluated_trajectories(run, result)
        entries = enumerate(evaluated.entries())
        places = [place for place, entry in entries if not (wrong and entry.score is not None and entry.score >= 1)]
        listed = evaluated.at(places)
        if as_json:
            for record in task_records({"set": result.set_name, "sampling": result.sampling}, listed):
                sys.stdout.write(separator + json.dumps(record))
                separator = ", "
            continue
        title = f"{result.set_name} {result.sampling}" + (", not right" if wrong else "")
        show([text(f"{title}: {counted(len(places), 'run')}", "strong")])
        for part in task_list(listed):
            show([part])
    if as_json:
        print("]" if separator == ", " else "[]")


def _resume(run: RunDirectory) -> list[blocks.Block | None]:
    """The command that continues a run that did not end."""
    asked = run.info().evaluation
    # Without tasks of its own it has those that callers bring: who opened it continues it.
    if run.status().state not in ("interrupted", "failed") or (asked and not asked.tasks):
        return []
    return [blocks.code(f"resume with: midstream resume {shlex.quote(str(run.root))}")]


def _dumped(records: Sequence[BaseModel]) -> list[blocks.Block]:
    return [record.model_dump(mode="json") for record in records]


def _record(run: RunDirectory) -> blocks.Block:
    """The numbers of a run as JSON; of a lesson run what it learned, too."""
    record: blocks.Block = {
        "run": str(run.root),
        "info": run.info().model_dump(),
        "status": run.status().model_dump(),
        "metrics": _dumped(run.metrics.read(skip_damage)),
        "evaluations": _dumped(run.evaluations.read(skip_damage)),
    }
    if run.info().kind != "lessons":
        return record
    from midstream.report.lessons import read_lesson_run

    data = read_lesson_run(run)
    return record | {
        "lessons": data.lesson_set.model_dump(mode="json"),
        "compared": [paired.model_dump(exclude={"differing"}) for paired in data.compared],
        "updates": _dumped(data.updates),
        "spent": data.spent.model_dump(),
    }
