"""`midstream failures EVALUATION`: runs that are not right, grouped by cause; and a file of their tasks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from midstream.cli import options as shared
from midstream.core.errors import UsageError
from midstream.core.trajectory import Trajectory
from midstream.evaluation.estimates import value
from midstream.report.blocks import code, table, text
from midstream.report.evaluation import evaluated_trajectories
from midstream.report.numbers import counted, number
from midstream.runs import RunDirectory
from midstream_ci.causes import Cause, choose, group_by_cause

HELP = "runs that are not right, grouped by cause; their tasks as a file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `failures`."""
    parser.add_argument("run", help="run directory")
    parser.add_argument("--eval-set", dest="set_name", metavar="NAME", help="of this set (default: of all)")
    parser.add_argument("--cause", metavar="TEXT", help="those whose cause begins like this")
    where = "those for which an expression is true, e.g. 'turns > 3 and \"python\" in tools' (default: reward < 1)"
    parser.add_argument("--where", metavar="EXPR", default="reward < 1", help=where)
    parser.add_argument("--tasks", type=Path, metavar="FILE", help="write their tasks, as --tasks FILE reads them")
    shared.add(parser, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Print the causes, and write the tasks."""
    directory = RunDirectory.open(Path(options.run))
    chosen = choose(_evaluated(directory, options.set_name), options.where)
    causes = [cause for cause in group_by_cause(chosen) if cause.name.startswith(options.cause or "")]
    runs = [run for cause in causes for run in cause.runs]
    tasks = tasks_of(runs)
    if options.tasks is not None:
        if not tasks:
            raise UsageError(
                f"no run of {options.run} is chosen, so {options.tasks} would be empty",
                code="no-tasks",
                fix="name another --cause or --where",
            )
        options.tasks.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(task, ensure_ascii=False) + "\n" for task in tasks)
        options.tasks.write_text("".join(lines), encoding="utf-8")
    record = [{"cause": cause.name, "runs": [run.id for run in cause.runs], "tasks": cause.tasks} for cause in causes]
    written = f"{counted(len(tasks), 'task')} in {options.tasks}" if options.tasks is not None else ""
    title = f"{counted(len(runs), 'run')} of {counted(len(tasks), 'task')}, by cause"
    parts = [text(title, "strong"), _causes(causes), code(written)]
    return shared.show(options, record, parts, [run.id for run in runs])


def _evaluated(directory: RunDirectory, set_name: str | None) -> Iterator[Trajectory]:
    """The runs of the last evaluation of every set. Raises `UsageError` without one."""
    newest = {(result.set_name, result.sampling): result for result in directory.evaluations.read()}
    results = [result for result in newest.values() if set_name in (None, result.set_name)]
    if not results:
        names = ", ".join(dict.fromkeys(name for name, _ in newest))
        raise UsageError(
            f"{directory.root} has no evaluation" + f" of the set {set_name!r}" * bool(names),
            code="no-evaluation",
            fix=f"name one of: {names}" if names else f"midstream eval {directory.root}",
        )
    for result in results:
        yield from evaluated_trajectories(directory, result)


def _causes(causes: Iterable[Cause]) -> dict[str, object] | None:
    rows = []
    for cause in causes:
        score = sum(map(value, cause.runs)) / len(cause.runs)
        rows.append((cause.name, number(len(cause.runs)), number(len(cause.tasks)), f"{score:.2f}", cause.runs[0].id))
    return table("", ("cause", "runs", "tasks", "mean reward", "e.g."), rows)


def tasks_of(runs: Iterable[Trajectory]) -> list[dict[str, str]]:
    """A row for each task of these runs: its question, gold answer, family and id."""
    rows = {run.task_id: run for run in runs}
    return [
        {"id": name, "question": run.question, "answer": run.gold or "", "family": run.family}
        for name, run in rows.items()
    ]
