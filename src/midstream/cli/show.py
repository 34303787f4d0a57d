"""`midstream show RUN [TRAJECTORY]`: the numbers of a run, its evaluated tasks, one trajectory; its files checked."""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from midstream.cli import options as shared
from midstream.core.errors import RunError, UsageError
from midstream.core.terminal import Terminal
from midstream.evaluation.verify import verify
from midstream.report import practice_tables, tables
from midstream.report.evaluation_tables import comparisons, evaluation_view, task_list, task_records
from midstream.report.numbers import counted, nothing_learned
from midstream.report.practice_data import PracticeData, practice_data
from midstream.report.run_results import evaluated_trajectories, run_view
from midstream.report.turn_rows import template_of
from midstream.runs import EvaluationInfo, RunDirectory, results
from midstream.runs.journal import skip_damage, warn_of_damage

_PAGE = 100
_STYLES = {"ok": "green", "damaged": "bold red", "not checked": "dim"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `show`."""
    parser.add_argument("run", help="run directory")
    parser.add_argument("trajectory", nargs="?", help="id of a trajectory, or its beginning")
    parser.add_argument("--tasks", action="store_true", help="list the evaluated tasks: score, answer, gold answer")
    parser.add_argument("--wrong", action="store_true", help="list those that are not right")
    parser.add_argument("--page", type=int, metavar="N", help=f"of the list, only the N-th {_PAGE} runs")
    parser.add_argument("--check", action="store_true", help="read every file; exit with 1 if one is damaged")
    text = "remove unreadable records, so that the run resumes, and check; FILE.damaged keeps them"
    parser.add_argument("--accept", action="store_true", help=text)
    shared.add(parser, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Show what the options name; returns 1 if `--check` finds a damaged file."""
    if options.check or options.accept:
        return _check(RunDirectory.open(Path(options.run), report=lambda line: None), options)
    if options.page is not None and options.page < 1:
        raise UsageError(f"there is no --page {options.page}", code="setting-range", fix="pages count from 1")
    run = RunDirectory.open(Path(options.run))
    info, status = run.info(), run.status()
    if options.trajectory:
        trajectory = run.find_trajectory(options.trajectory)
        if options.json:
            print(trajectory.model_dump_json())
        else:
            Terminal().print(tables.trajectory_view(trajectory, template=template_of(info.resolved)))
    elif options.tasks or options.wrong or options.page:
        _show_tasks(run, wrong=options.wrong, page=options.page, as_json=options.json)
    elif options.json:
        record: dict[str, Any] = {"run": str(run.root), "info": info.model_dump(), "status": status.model_dump()}
        if info.kind == "practice":
            data = practice_data(run, whole=False)
            record |= {"updates": [update.model_dump(mode="json") for update in data.updates], **_learned(data)}
        else:
            record |= {
                "metrics": _dumped(run.metrics.read(skip_damage)),
                "evaluations": _dumped(run.evaluations.read(skip_damage)),
            }
        print(json.dumps(record))
    elif info.kind == "evaluation":
        show_evaluation(run)
    elif info.kind == "practice":
        Terminal().print(run_view(run))
        _print_resume(Terminal(), run)
    else:
        Terminal().print(run_view(run))
        _show_status(run)
    return 0


def show_result(run: RunDirectory, *, as_json: bool = False, short: bool = False) -> None:
    """Print what changed from before to after training or practice; if `short`, of the test set's success alone."""
    console, data = Terminal(), practice_data(run, whole=False) if run.info().kind == "practice" else None
    if as_json:
        learned = {**_learned(data), "spent": data.spent.model_dump()} if data else {}
        print(json.dumps({"run": str(run.root), "evaluations": _dumped(run.evaluations.read(skip_damage)), **learned}))
        return
    if data:
        console.print(practice_tables.result_view(data))
        console.print(Text("\nNext", "bold"))
        for line in data.next_steps:
            console.print(Text(f"  {line}"), soft_wrap=True)
        return
    if nothing := nothing_learned([step.no_contrast for step in run.metrics.read(skip_damage)], "step"):
        console.print(Text(nothing, "yellow"), soft_wrap=True)
    sides = [(each.before, each.after) for each in comparisons(run.evaluations.read(skip_damage)) if each.after]
    for before, after in sorted(sides, key=lambda side: side[0][0].set_name != "test"):  # the test set first
        if (name := before[0].set_name) != "validation" and (name == "test" or not short):
            console.print(tables.before_after_table(before, after))
        sampled = [[result for result in side if result.sampling == "T=1"] for side in (before, after)]
        if name == "test" and sampled[1] and not short:
            console.print(tables.tool_shift_table(*sampled))


def show_result_and_report(run: RunDirectory, *, as_json: bool) -> None:
    """Print what changed, and where the report is."""
    show_result(run, as_json=as_json)
    if not as_json:
        Terminal().print(f"Report: {run.report_path}", soft_wrap=True)


def show_evaluation(run: RunDirectory, *, as_json: bool = False) -> None:
    """Print what is evaluated, the numbers of every set that is done, and the progress of the current one."""
    found = run.evaluations.read(skip_damage)
    if as_json:
        print(json.dumps({"run": str(run.root), "evaluations": _dumped(found)}))
        return
    info, console = run.info(), Terminal()
    asked = info.evaluation or EvaluationInfo()
    what = f"step {asked.step} of {asked.run}" if asked.run else "its agent as it is"
    agent: Any = info.resolved.get("agent")
    if agent and agent.get("library"):
        what += f", with the lessons of {agent['library']}"
    console.print(f"recipe  {info.recipe_name}, seed {info.seed}: {what}", highlight=False, soft_wrap=True)
    if found:
        console.print(evaluation_view(found))
    for name, count in Counter(record.set for record in results.read(run.results_path, warn_of_damage)).items():
        console.print(Text(f"under way: {name}, {counted(count, 'run')} so far"))
    if any(result.errors for result in found):
        command = f"midstream resume {shlex.quote(str(run.root))} --retry-errors"
        console.print(f"to run again what ended in errors: {command}", soft_wrap=True)
    _show_status(run)


def _show_tasks(run: RunDirectory, *, wrong: bool, page: int | None, as_json: bool) -> None:
    """Print the tasks of the last evaluations, or only those that are not right, or only one page of each list."""
    found = run.evaluations.read(skip_damage)
    last = max((result.step or 0 for result in found), default=0)
    chosen = [result for result in found if run.info().kind == "evaluation" or result.step == last]
    if not chosen:
        raise RunError(
            f"{run.root} has no finished evaluation",
            code="no-evaluation",
            fix=f"midstream show {shlex.quote(str(run.root))} shows its status",
        )
    # What is not on the page is not read, and nothing is held: an evaluation may have 100,000 runs.
    console, separator = Terminal(), "["
    for result in chosen:
        evaluated = evaluated_trajectories(run, result)
        entries = enumerate(evaluated.entries())
        places = [place for place, entry in entries if not (wrong and entry.score is not None and entry.score >= 1)]
        listed = evaluated.at(places if page is None else places[(page - 1) * _PAGE : page * _PAGE])
        if as_json:
            for record in task_records({"set": result.set_name, "sampling": result.sampling}, listed):
                sys.stdout.write(separator + json.dumps(record))
                separator = ", "
            continue
        title = f"{result.set_name} {result.sampling}" + (", not right" if wrong else "")
        pages = f", page {page:,} of {math.ceil(len(places) / _PAGE):,}" if page else ""
        console.print(Text(f"{title}: {counted(len(places), 'run')}{pages}", "bold"))
        for part in task_list(listed):
            console.print(part)
    if as_json:
        print("]" if separator == ", " else "[]")


def _check(run: RunDirectory, options: argparse.Namespace) -> int:
    """Print the state of every file, once the damage is accepted if the options say so."""
    if options.accept:
        with run.lock():
            run.accept_damage()
    checks = verify(run)
    counts = Counter(check.state for check in checks)
    if options.json:
        print(json.dumps({"run": str(run.root), "files": [asdict(check) for check in checks]}))
    else:
        console = Terminal()
        for check in checks:
            line = Text(f"{check.state:<13}", _STYLES[check.state]).append(check.file, "not dim")
            console.print(line.append(f": {check.problem}" if check.problem else ""), soft_wrap=True)
            if check.fix:
                console.print(Text(f"{'':<13}fix: {check.fix}"), soft_wrap=True)
        console.print(", ".join(f"{counted(counts[state], 'file')} {state}" for state in _STYLES if counts[state]))
    return 1 if counts["damaged"] else 0


def _show_status(run: RunDirectory) -> None:
    console, status = Terminal(), run.status()
    why = f": {status.message}" if status.message else ""
    console.print(Text(f"status  {status.state}{why}"))
    _print_resume(console, run)


def _print_resume(console: Terminal, run: RunDirectory) -> None:
    if run.status().state in ("interrupted", "failed"):
        agent: Any = run.info().resolved.get("agent", {})
        root = shlex.quote(str(run.root))
        again = f"midstream serve {root}/recipe.toml --sessions --out {root}"
        command = again if agent.get("type") == "external" and run.info().evaluation else f"midstream resume {root}"
        console.print(Text(f"resume with: {command}"), soft_wrap=True)


def _dumped(records: Any) -> list[dict[str, Any]]:
    return [record.model_dump() for record in records]


def _learned(data: PracticeData) -> dict[str, Any]:
    """What a practice run learned, as JSON."""
    return {
        "library": data.library.model_dump(mode="json"),
        "evaluations": _dumped(data.evaluations),
        "compared": [paired.model_dump(exclude={"differing"}) for paired in data.compared],
    }
