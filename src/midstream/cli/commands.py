"""What the commands around training do: find the recipe or run, build, run, show. `cli/eval.py` has `eval`."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from midstream.cli.practice_results import is_practice, show_practice
from midstream.cli.results import (
    recipe_of,
    show_demo,
    show_evaluation,
    show_result,
    show_status,
    show_tasks,
    table_of,
    write_report,
)
from midstream.core.errors import MidstreamError, RunError, UsageError
from midstream.core.lessons import digest
from midstream.engines.local.settings import require_torch
from midstream.practice.budget import Budget
from midstream.practice.commit import read_updates
from midstream.practice.session import PracticeParts, PracticeSession
from midstream.recipe.build import Build
from midstream.recipe.check import check
from midstream.recipe.estimate import describe
from midstream.recipe.library import unproven, with_library
from midstream.recipe.practisable import practice_parts_of
from midstream.recipe.schema import Recipe, parse_recipe, read_table, to_toml, with_overrides
from midstream.recipe.trainable import parts_of
from midstream.report import tables
from midstream.report.progress import terminal_progress
from midstream.report.turn_rows import template_of
from midstream.runs import RunDirectory

if TYPE_CHECKING:
    from midstream.training.session import Parts

_LIMITS = "practice.budget"  # what a run that goes on may change
DEMO_RECIPE, DEMO_RUN = "flow-grpo-tiny", "runs/demo"


def train(options: argparse.Namespace) -> int:
    """`midstream train RECIPE`."""
    recipe = _recipe(options.recipe, options)
    if options.dry_run:
        return dry_run(recipe, "train")
    root = Path(options.out or f"runs/{recipe.name}-s{recipe.seed}-{time.strftime('%Y%m%d-%H%M%S')}")
    run = _train(root, None, recipe, options)
    show_result(run, options)
    if not options.json:
        Console().print(f"Report: {run.report_path}", markup=False, soft_wrap=True)
    return 0


def resume(options: argparse.Namespace) -> int:
    """`midstream resume RUN`; a practice run may be given a larger budget, and goes on with that if it had ended."""
    run = RunDirectory.open(Path(options.run))
    recipe = parse_recipe(with_overrides(table_of(run), options.overrides))
    if options.overrides:
        _check_raised(run, recipe, options.overrides)
    _train(run.root, run, recipe, options)
    show_result(run, options)
    if not options.json:
        Console().print(f"Report: {run.report_path}", markup=False, soft_wrap=True)
    return 0


def demo(options: argparse.Namespace) -> int:
    """`midstream demo`: the tiny recipe, then everything there is to see. An interrupted demo goes on."""
    recipe = _recipe(DEMO_RECIPE, options)
    if options.dry_run:
        return dry_run(recipe, "train")
    root = Path(options.out or DEMO_RUN)
    if options.no_resume and (root / "run.json").exists():
        raise _holds_a_run(root)
    run = _train(root, _existing_run(root, recipe), recipe, options)
    show_result(run, options)
    if not options.json:
        show_demo(run)
    return 0


def show(options: argparse.Namespace) -> int:
    """`midstream show RUN [TRAJECTORY]`."""
    run = RunDirectory.open(Path(options.run))
    if options.trajectory:
        trajectory = run.find_trajectory(options.trajectory)
        if options.json:
            print(trajectory.model_dump_json())
        else:
            Console().print(tables.trajectory_view(trajectory, template=template_of(run.info().resolved)))
        return 0
    if options.tasks or options.wrong:
        show_tasks(run, wrong=options.wrong, as_json=options.json)
        return 0
    if is_practice(run):
        show_practice(run, options)
        return 0
    info, status = run.info(), run.status()
    metrics, results = run.metrics.read(), run.evaluations.read()
    if info.evaluation is not None and not options.json:
        show_evaluation(run)
        return 0
    if options.json:
        print(json.dumps({
            "run": str(run.root), "info": info.model_dump(), "status": status.model_dump(),
            "metrics": [one.model_dump() for one in metrics], "evaluations": [one.model_dump() for one in results],
        }))  # fmt: skip
        return 0
    steps = recipe_of(run).training
    console = Console()
    console.print(tables.run_summary(str(run.root), info.recipe_name, steps.steps if steps else 0, metrics, results))
    show_status(run)
    return 0


def tell_sandbox(build: Build, options: argparse.Namespace) -> None:
    """Say what holds back the code that the run may write, and where tools' answers come from."""
    if build.sandbox_line and not options.quiet:
        Console(stderr=True).print(f"sandbox {build.sandbox_line}", markup=False, highlight=False)
    if build.replay and not options.quiet:
        Console(stderr=True).print(
            f"tools   replayed from {build.replay}", markup=False, highlight=False, soft_wrap=True
        )


def tell_library(build: Build, weights: str = "") -> None:
    """Warn of lessons that no test has accepted for this agent; `weights` is the digest of its checkpoint."""
    named = build.resolved["agent"].get("library")
    if named is not None and (said := unproven(named, build.resolved, weights)):
        Console(stderr=True).print(f"warning: {said}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def check_lessons(run: RunDirectory, build: Build) -> None:
    """Refuse to go on with other lessons in the prompts than a run began with: results of both would be one."""
    held, now = run.info().lessons, digest(build.lessons)
    if held != now:
        raise RunError(
            f"the lessons of {run.root} are not those that it began with: {held or 'none'}, now {now or 'none'}",
            cause=f"{build.resolved['agent'].get('library')} was changed; results on both would be counted as one",
            fix="restore it (a version of a run's library, RUN@VERSION, never changes), or begin anew with --out",
        )


def has_weights(run: RunDirectory) -> bool:
    """Whether a run's planner samples from weights of its own; one that practised on a served model has none."""
    return not is_practice(run) or bool(run.checkpoints.steps())


def weights_digest(run: RunDirectory, step: int) -> str:
    """What tells the weights of a training run's checkpoint from those that its recipe begins with: "" of step 0."""
    return run.checkpoints.digest(step) if step else ""


def train_quietly(root: Path, recipe: Recipe) -> RunDirectory:
    """Train a recipe in `root` without output, going on if it was begun; a finished run is left as it is."""
    return _train(root, _existing_run(root, recipe), recipe, argparse.Namespace(quiet=True, record=None, replay=None))


def _recipe(name: str, options: argparse.Namespace) -> Recipe:
    overrides = list(options.overrides)
    if options.seed is not None:
        overrides.append(f"seed={options.seed}")
    return parse_recipe(with_library(with_overrides(read_table(name), overrides), options.library))


def build_of(recipe: Recipe, run: RunDirectory | None, options: argparse.Namespace) -> Build:
    """The build of a recipe's agent, or of a run's, as the command line wants it."""
    use_threads(recipe, learns=False)
    return Build(
        recipe,
        adapters=run.root / "adapters" / "asked" if run else Path("adapters"),
        unsafe=options.unsafe,
        record=options.record,
        replay=options.replay,
    )


def use_threads(recipe: Recipe, *, learns: bool) -> None:
    """Let PyTorch use `learner.threads` CPU threads in this process, where results depend on their number.

    They do for a learner (`learns`) and for the initial weights of a model that is made from nothing.
    """
    if learns or any(engine.config.needs_world for engine in recipe.engines.values()):
        require_torch()
        import torch

        torch.set_num_threads(recipe.learner.threads)


def use_policy(build: Build, run: RunDirectory, step: int | None = None) -> int:
    """Let the planner sample from the run's checkpoint of `step`, or from its newest good one; returns its step."""
    use_threads(build.recipe, learns=True)
    from midstream.training.session import load_policy

    found = load_policy(build.policy.learner, run, Console(stderr=True).print, max_step=step)
    if step not in (None, found):
        raise RunError(
            f"{run.root} has no checkpoint of step {step} any more",
            cause=f"training went on and keeps the newest only, or it is damaged; the one before is of step {found}",
            fix="begin a new evaluation, with another --out",
        )
    asyncio.run(build.policy.publish(found))
    return found


def dry_run(recipe: Recipe, work: Literal["train", "eval", "other"] = "other") -> int:
    """Validate everything and print the resolved recipe; of training and evaluation also what they would do."""
    resolved = check(recipe)
    print(to_toml(resolved))
    if work != "other":
        print("\n".join(f"# {line}" for line in describe(recipe, resolved, training=work == "train")))
    return 0


def _create_run(root: Path, build: Build) -> RunDirectory:
    return RunDirectory.create(
        root,
        recipe_toml=to_toml(build.resolved),
        recipe_name=build.recipe.name,
        seed=build.recipe.seed,
        resolved=build.resolved,
        lessons=digest(build.lessons),
    )


def _check_raised(run: RunDirectory, recipe: Recipe, overrides: Sequence[str]) -> None:
    """Refuse to go on with other settings than a run began with; with other limits an ended run goes on."""
    others = [one for one in overrides if not one.startswith(f"{_LIMITS}.")]
    if others or recipe.practice is None:
        raise UsageError(
            f"--set {(others or overrides)[0]} cannot be changed in {run.root}",
            cause="its results under several settings would be counted as one",
            fix=f"begin a new run; of a practice run {_LIMITS}.* may be raised",
        )
    if run.status().state == "finished":
        run.set_status("interrupted", "goes on with other limits")


def _existing_run(root: Path, recipe: Recipe) -> RunDirectory | None:
    """The run that was begun in `root`, if there is one; refuses one of another recipe."""
    if not (root / "run.json").exists():
        return None
    run = RunDirectory.open(root)
    if run.info().evaluation is not None or check(recipe_of(run)) != check(recipe):
        raise _holds_a_run(root, " with other settings")
    return run


def _holds_a_run(root: Path, which: str = "") -> RunError:
    return RunError(
        f"{root} already holds a run{which}",
        cause="it was begun here before",
        fix=f"choose another directory with --out, or move {root} away",
    )


def _train(root: Path, run: RunDirectory | None, recipe: Recipe, options: argparse.Namespace) -> RunDirectory:
    """Run a session to its end in `run`, or in a new one at `root`, and leave a status whatever happens."""
    if run is not None and run.status().state == "finished":
        return run
    practice = recipe.practice
    use_threads(recipe, learns=practice is None or recipe.warm_start is not None)
    budget = None if practice is None else Budget(practice.budget)
    with Build(
        recipe, adapters=root / "adapters", record=options.record, replay=options.replay, budget=budget
    ) as build:
        # What cannot be built leaves no run behind.
        work = _training(parts_of(build)) if practice is None else _practice(practice_parts_of(build))
        run = run or _create_run(root, build)
        check_lessons(run, build)
        tell_sandbox(build, options)
        tell_library(build)
        with run.lock():
            work(run, options)
    return run


def _practice(parts: PracticeParts) -> Callable[[RunDirectory, argparse.Namespace], None]:
    """Practise to the end; a limit that ended the run early is said in its status."""

    def work(run: RunDirectory, options: argparse.Namespace) -> None:
        console, ended = Console(stderr=True), ""
        with leaving_status(run, console):
            with terminal_progress("practice", console, quiet=options.quiet) as display:
                ended = asyncio.run(PracticeSession(parts, run, display).run())
            write_report(run)
        run.set_status("finished", ended, step=len(read_updates(run)))

    return work


def _training(parts: Parts) -> Callable[[RunDirectory, argparse.Namespace], None]:
    return lambda run, options: _train_in(run, parts, options)


def _train_in(run: RunDirectory, parts: Parts, options: argparse.Namespace) -> None:
    from midstream.training.session import Session

    console = Console(stderr=True)
    with leaving_status(run, console):
        with terminal_progress("training", console, quiet=options.quiet) as display:
            asyncio.run(Session(parts, run, display).run())
        write_report(run)


@contextmanager
def leaving_status(run: RunDirectory, console: Console) -> Iterator[None]:
    """Whatever happens inside, the run's status says it afterwards; after Ctrl-C `console` how to go on."""
    run.set_status("running")
    try:
        yield
    except KeyboardInterrupt:
        run.set_status("interrupted", "stopped by Ctrl-C")
        console.print(f"\nstopped; go on with: midstream resume {shlex.quote(str(run.root))}", markup=False)
        raise
    except MidstreamError as error:
        run.set_status("failed", str(error))
        raise
    run.set_status("finished")
