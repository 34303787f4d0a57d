"""What a run came to: its recipe, its numbers before and after, its report, what to try next."""

from __future__ import annotations

import argparse
import json
import shlex
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from midstream.cli.practice_results import is_practice, show_practice_result, write_practice_report
from midstream.core.errors import RunError
from midstream.core.metrics import EvaluationResult
from midstream.core.trajectory import Trajectory
from midstream.evaluation import result_name
from midstream.recipe.schema import InterleavedConfig, Recipe, Table, parse_recipe
from midstream.report import evaluation_tables, tables, training_page
from midstream.report.evaluation_tables import evaluation_view
from midstream.report.numbers import counted, visible
from midstream.report.turn_rows import template_of
from midstream.runs import EvaluationInfo, RunDirectory, results
from midstream.runs.directory import damaged_recipe

TINY_LIMITS = """The planner has half a million parameters and a closed vocabulary: it plans for this made-up world and
for nothing else. Executor, verifier and generator are fixed programs; the verifier wants every named place looked up
and a result of the right form, and cannot tell a right one from a wrong one. Questions come from templates, and the
test's differ from the training's in their places, facts and numbers, not in their wording. What this shows is that
the loop, the credit and the update work, on real tools and held-out facts; it says nothing about how much a large
model gains."""

TINY_STREAM_LIMITS = """The policy has half a million parameters and a closed vocabulary: it thinks, calls its tools and
answers in this made-up world and nowhere else, and its thoughts are the few words that its warm start taught it.
Questions come from templates, and the test's differ from the training's in their places, facts and numbers, not in
their wording. What this shows is that the loop, the masks and the update work, on real tools and held-out facts; it
says nothing about how much a large model gains."""


def recipe_of(run: RunDirectory) -> Recipe:
    """The resolved recipe that a run was started with."""
    return parse_recipe(table_of(run))


def table_of(run: RunDirectory) -> Table:
    """The resolved recipe of a run as it was written down."""
    try:
        return tomllib.loads(run.recipe())
    except tomllib.TOMLDecodeError as error:
        raise damaged_recipe(run.recipe_path, error) from error


def show_result(run: RunDirectory, options: argparse.Namespace) -> None:
    """Print the evaluations before and after training, or all of them as JSON; of a practice run its library too."""
    if is_practice(run):
        show_practice_result(run, options)
        return
    if options.json:
        print(json.dumps({"run": str(run.root), "evaluations": [one.model_dump() for one in run.evaluations.read()]}))
        return
    console = Console()
    before, after = before_and_after(run)
    if _only(after, "test"):
        console.print(tables.before_after_table(*(_only(side, "test") for side in (before, after))))
    if _only(after, "test", "T=1"):
        console.print(tables.tool_shift_table(*(_only(side, "test", "T=1") for side in (before, after))))
    for name in dict.fromkeys(one.set_name for one in after if one.set_name not in ("test", "validation")):
        console.print(tables.before_after_table(_only(before, name), _only(after, name)))


def show_evaluation(run: RunDirectory) -> None:
    """Print what is evaluated, the numbers of every set that is done, and how far the one under way is."""
    info, console = run.info(), Console()
    asked = info.evaluation or EvaluationInfo()
    what = f"step {asked.step} of {asked.run}" if asked.run else "its agent as it is"
    agent = info.resolved.get("agent")
    if isinstance(agent, dict) and agent.get("library"):
        what += f", with the lessons of {agent['library']}"
    console.print(
        f"recipe  {info.recipe_name}, seed {info.seed}: {what}", markup=False, highlight=False, soft_wrap=True
    )
    found = run.evaluations.read()
    if found:
        console.print(evaluation_view(found))
    underway = Counter(one.set for one in results.read(run.results_path))
    for name, count in underway.items():
        console.print(Text(visible(f"under way: {name}, {counted(count, 'run')} so far")))
    root = shlex.quote(str(run.root))
    if any(one.errors for one in found):
        console.print(
            f"what ended in errors again: midstream resume {root} --retry-errors", markup=False, soft_wrap=True
        )
    show_status(run)


def show_tasks(run: RunDirectory, *, wrong: bool, as_json: bool) -> None:
    """Print what was evaluated last, task by task, or those alone that are not right."""
    found = run.evaluations.read()
    last = max((one.step or 0 for one in found), default=0)
    chosen = [one for one in found if run.info().evaluation is not None or one.step == last]
    if not chosen:
        raise RunError(
            f"{run.root} has no evaluation that is done",
            cause="it was stopped before, or every run of it was lost",
            fix=f"midstream show {shlex.quote(str(run.root))} says how it stands",
        )
    records: list[dict[str, Any]] = []
    for one in chosen:
        trajectories = evaluated_trajectories(run, one)
        listed = evaluation_tables.not_right(trajectories) if wrong else trajectories
        if as_json:
            records += evaluation_tables.task_records({"set": one.set_name, "sampling": one.sampling}, listed)
        else:
            title = f"{one.set_name} {one.sampling}" + (", not right" if wrong else "")
            Console().print(evaluation_tables.task_list(title, listed))
    if as_json:
        print(json.dumps(records))


def evaluated_trajectories(run: RunDirectory, result: EvaluationResult) -> list[Trajectory]:
    """Those of one evaluation; a training run, which evaluates a set at several steps, has the step in their name."""
    step = result.step if run.info().evaluation is None else None
    return run.trajectories.read_evaluation(result_name(result.set_name, result.sampling, step))


def show_status(run: RunDirectory) -> None:
    """Print how a run stands, and the command that goes on with it."""
    console, status = Console(), run.status()
    why = f": {visible(status.message)}" if status.message else ""
    console.print(Text(f"status  {status.state}{why}"))
    if status.state in ("interrupted", "failed"):
        console.print(Text(f"go on with: midstream resume {shlex.quote(str(run.root))}"), soft_wrap=True)


def show_demo(run: RunDirectory) -> None:
    """Print one question turn by turn, what the demo cannot show, and what to try next."""
    console = Console()
    console.print("[bold]One held-out question, turn by turn[/bold]\n")
    for _, trajectory in samples(run)[-1:]:
        console.print(tables.trajectory_view(trajectory, template=template_of(run.info().resolved)))
    seconds = sum(one.cpu_s for one in run.timings.read())
    console.print(f"\nReport: {run.report_path}   (training steps took {seconds:.0f} CPU-seconds)", markup=False)
    console.print("\n[bold]Limits[/bold]")
    console.print(_limits(recipe_of(run)), markup=False)
    console.print("\n[bold]Next[/bold]")
    for line in next_steps(run):
        console.print(f"  {line}", markup=False, soft_wrap=True)


def write_report(run: RunDirectory) -> None:
    """Write the run's self-contained HTML report."""
    if is_practice(run):
        write_practice_report(run)
        return
    info = run.info()
    training_page.write_report(
        run.report_path,
        training_page.ReportData(
            title=f"{info.recipe_name}, seed {info.seed}",
            recipe_toml=run.recipe(),
            run_info={
                "recipe": info.recipe_name, "seed": info.seed, "midstream": info.midstream, "python": info.python,
                "platform": info.platform, "commit": info.git_commit or "-", "started": info.created_at,
                "tools": tools_used(info.resolved),
                "CPU-seconds of training steps": round(sum(one.cpu_s for one in run.timings.read()), 1),
                **info.packages,
            },
            metrics=run.metrics.read(),
            timings=run.timings.read(),
            evaluations=run.evaluations.read(),
            samples=samples(run),
            template=template_of(info.resolved),
            limits=_limits(recipe_of(run)),
            next_steps=next_steps(run),
        ),
    )  # fmt: skip


def _limits(recipe: Recipe) -> str:
    """What a run of a tiny model cannot show; "" of others."""
    if not any(engine.type == "tiny" for engine in recipe.engines.values()):
        return ""
    limits = TINY_STREAM_LIMITS if isinstance(recipe.agent, InterleavedConfig) else TINY_LIMITS
    return " ".join(limits.split())


def tools_used(resolved: Mapping[str, Any]) -> str:
    """A resolved recipe's tools in a line, each with who is behind it: another provider is another experiment."""
    behind = ("provider", "language", "index", "engine")
    said = {
        name: ", ".join(f"{key} {table[key]}" for key in behind if table.get(key))
        for name, table in resolved.get("tools", {}).items()
    }
    return "; ".join(name + (f" ({words})" if words else "") for name, words in said.items()) or "-"


def next_steps(run: RunDirectory) -> list[str]:
    """Commands to try after a run."""
    question = next((one.question for _, one in samples(run)[-1:]), "What is 45 plus 17 ?")
    root = shlex.quote(str(run.root))
    return [
        f'midstream solve "{question}" --planner {root}',
        f"midstream show {root}",
        f'midstream solve "{question}" --base-url http://localhost:11434/v1 --model qwen2.5:7b     # Ollama',
        f'midstream solve "{question}" --base-url http://localhost:8000/v1 --model Qwen/Qwen2.5-7B-Instruct     # vLLM',
        f'OPENAI_API_KEY=... midstream solve "{question}" --model gpt-4o-mini     # an API key',
        "midstream study controls --seeds 3",
    ]


def before_and_after(run: RunDirectory) -> tuple[list[EvaluationResult], list[EvaluationResult]]:
    """The evaluations of step 0 and of the last evaluated step."""
    results = [one for one in run.evaluations.read() if one.step is not None]
    last = max((one.step or 0 for one in results), default=0)
    return [one for one in results if one.step == 0], [one for one in results if one.step == last and last > 0]


def samples(run: RunDirectory) -> list[tuple[str, Trajectory]]:
    """One test question before and after training: of those newly solved, the one with the most different actions."""
    before, after = before_and_after(run)
    if not before or not after or not _only(before, "test") or not _only(after, "test"):
        return []
    named = [one.sampling for one in _only(after, "test")]
    sampling = "greedy" if "greedy" in named else named[-1]
    first, last = (run.trajectories.read_evaluation(result_name("test", sampling, step)) for step in (0, after[0].step))
    pairs = [(a, b) for a, b in zip(first, last, strict=True) if _solved(b) and not _solved(a)]
    pair = max(pairs, key=lambda pair: _different_actions(pair[1]), default=None) or (first[-1], last[-1])
    return [("before training", pair[0]), ("after training", pair[1])]


def _only(results: Sequence[EvaluationResult], name: str, sampling: str | None = None) -> list[EvaluationResult]:
    return [one for one in results if one.set_name == name and sampling in (None, one.sampling)]


def _different_actions(trajectory: Trajectory) -> int:
    return len({turn.action.model_dump_json() for turn in trajectory.turns if turn.action})


def _solved(trajectory: Trajectory) -> bool:
    return trajectory.reward is not None and trajectory.reward.value == 1
