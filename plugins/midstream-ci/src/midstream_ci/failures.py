"""`midstream failures EVALUATION`: runs that are not right, grouped by cause; and a file of their tasks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from midstream.cli import options as shared
from midstream.core.errors import UsageError
from midstream.core.trajectory import Trajectory
from midstream.evaluation.estimates import value
from midstream.report.blocks import code, table, text
from midstream.report.causes import add_task, cause_of, matches
from midstream.report.evaluation import evaluated_trajectories
from midstream.report.numbers import counted, number
from midstream.runs import RunDirectory

_NOT_KEPT = (
    "A run keeps no reward of a task's own and none of its other fields: add them to the file, or a right answer may "
    "count as wrong."
)

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
    chosen = [run for run in _evaluated(directory, options.set_name) if matches(run, options.where)]
    found: dict[str, list[Trajectory]] = {}
    for run in chosen:
        found.setdefault(cause_of(run), []).append(run)
    ordered = sorted(found.items(), key=lambda cause: -len(cause[1]))
    causes = {cause: alike for cause, alike in ordered if cause.startswith(options.cause or "")}
    runs = [run for alike in causes.values() for run in alike]
    tasks, ids = dict[str, str](), dict[str, str]()
    # Runs of two sets may have equal ids.
    named = {cause: [add_task(run, tasks, ids) for run in alike] for cause, alike in causes.items()}
    if options.tasks is not None:
        if not tasks:
            raise UsageError(
                f"no run of {options.run} is chosen, so {options.tasks} would be empty",
                code="no-tasks",
                fix="name another --cause or --where",
            )
        options.tasks.parent.mkdir(parents=True, exist_ok=True)
        try:
            with options.tasks.open("x", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in tasks.values())
        except FileExistsError as error:
            what = f"{options.tasks} is there already"
            raise UsageError(what, code="file-exists", fix="give another name: --tasks FILE") from error
    record = [
        {"cause": cause, "runs": [run.id for run in alike], "tasks": [*dict.fromkeys(named[cause])]}
        for cause, alike in causes.items()
    ]
    written = f"{counted(len(tasks), 'task')} in {options.tasks}" if options.tasks is not None else ""
    title = f"{counted(len(runs), 'run')} of {counted(len(tasks), 'task')}, by cause"
    parts = [text(title, "strong"), _causes(causes, named), code(written)]
    if written:
        kept = (json.loads(tasks[add_task(run, tasks, ids)])["answer"] for run in runs)
        firsts = (answer[0] if isinstance(answer, list) else answer for answer in kept)
        unlike = sum(first != (run.gold or "") for first, run in zip(firsts, runs, strict=True))
        words = f"{counted(unlike, 'run')} had another correct answer to a question in the file: the first one is kept."
        parts += [text(_NOT_KEPT, "soft"), text(words * bool(unlike), "warn")]
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


def _causes(causes: Mapping[str, Sequence[Trajectory]], tasks: Mapping[str, Sequence[str]]) -> dict[str, object] | None:
    rows = []
    for cause, runs in causes.items():
        score = sum(map(value, runs)) / len(runs)
        rows.append((cause, number(len(runs)), number(len({*tasks[cause]})), f"{score:.2f}", runs[0].id))
    return table("", ("cause", "runs", "tasks", "mean reward", "e.g."), rows)
