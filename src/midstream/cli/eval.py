"""`midstream eval`: an agent on sets of tasks, in a directory that says what came of it and goes on after a kill.

Each trajectory goes into the directory as it ends, so whatever has a result is never run again. All task sets are drawn
and everything is built before the directory is made: what cannot be evaluated leaves nothing behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.text import Text

from midstream import evaluation
from midstream.cli import commands
from midstream.cli.results import recipe_of, show_evaluation
from midstream.core import lessons
from midstream.core.errors import InfrastructureError, RecipeError, RunError, UsageError
from midstream.core.events import (
    EvaluationFinished,
    Listener,
    Note,
    RunFinished,
    RunStarted,
    SetStarted,
    TrajectoriesFinished,
)
from midstream.core.metrics import EvaluationResult
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.recipe.build import Build
from midstream.recipe.check import check
from midstream.recipe.overrides import evaluation_table
from midstream.recipe.schema import Recipe, differing_settings, parse_recipe, to_toml
from midstream.report.numbers import counted, visible
from midstream.report.progress import terminal_progress
from midstream.rollout import Environment, OnDone
from midstream.runs import EvaluationInfo, Journal, RunDirectory, results
from midstream.tasks.finite import Finite

Key = tuple[str, str]  # set and sampling
_SETTINGS_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Part:
    """One set at one temperature, ready to run."""

    chosen: evaluation.SetConfig
    temperature: float
    tasks: Sequence[Task]
    environment: Environment

    @property
    def key(self) -> Key:
        """What its result is told apart by."""
        return self.chosen.name, evaluation.sampling_name(self.temperature)

    @property
    def name(self) -> str:
        """What its trajectories are filed under."""
        return evaluation.result_name(*self.key)


def evaluate(options: argparse.Namespace) -> int:
    """`midstream eval RUN|RECIPE`: a new evaluation, or the one that `--out` holds goes on."""
    trained = _trained(options.target)
    recipe = parse_recipe(evaluation_table(options, trained))
    if options.dry_run:
        return commands.dry_run(recipe, "eval")
    asked = EvaluationInfo(
        run=os.path.abspath(trained.root) if trained and commands.has_weights(trained) else None,
        unsafe=options.unsafe,
        record=os.path.abspath(options.record) if options.record else None,
        replay=os.path.abspath(options.replay) if options.replay else None,
    )
    root = Path(options.out or f"runs/eval-{recipe.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    begun = RunDirectory.open(root) if (root / "run.json").exists() else None
    return _run(root, begun, recipe, asked, options)


def resume(options: argparse.Namespace) -> int:
    """`midstream resume DIR` of an evaluation; a training run goes on in `commands`."""
    begun = RunDirectory.open(Path(options.run))
    asked = begun.info().evaluation
    if asked is not None:
        if options.overrides:
            raise UsageError(
                f"--set {options.overrides[0]} cannot be changed in {begun.root}, an evaluation",
                cause="its results under several settings would be counted as one",
                fix="begin a new evaluation, with another --out",
            )
        return _run(begun.root, begun, recipe_of(begun), asked, options)
    if options.retry_errors:
        raise UsageError(
            f"{begun.root} is a training run: --retry-errors does nothing there",
            cause="a trajectory that was lost in training is left out of its step, which is over",
            fix=f"midstream resume {begun.root}",
        )
    return commands.resume(options)


def evaluate_sets(build: Build) -> list[EvaluationResult]:
    """Evaluate the recipe's agent on every set at every temperature, in memory and without a word."""
    return [_evaluate(build, part, None, [], None)[0] for part in _parts(build)]


def _trained(target: str) -> RunDirectory | None:
    """The training or practice run that is named, None for a recipe."""
    is_path = os.sep in target and not target.endswith(".toml")
    if not is_path and not (Path(target) / "run.json").exists():
        return None
    run = RunDirectory.open(Path(target))
    if run.info().evaluation is not None:
        raise RunError(
            f"{target} holds an evaluation, which cannot be evaluated",
            cause="`eval` takes a run that trains or practises, or a recipe",
            fix=f"midstream show {target}, or midstream resume {target}",
        )
    return run


def _run(
    root: Path, begun: RunDirectory | None, recipe: Recipe, asked: EvaluationInfo, options: argparse.Namespace
) -> int:
    """Evaluate what is not done yet, and show all of it."""
    if begun is not None:
        asked = _same(begun, recipe, asked)
    if begun is None or begun.status().state != "finished" or options.retry_errors:
        commands.use_threads(recipe, learns=False)
        with Build(
            recipe,
            adapters=(Path(asked.run) if asked.run else root) / "adapters" / "asked",
            unsafe=asked.unsafe,
            record=Path(asked.record) if asked.record else None,
            replay=Path(asked.replay) if asked.replay else None,
        ) as build:
            begun = _evaluated(root, begun, build, asked, options)
    if options.json:
        found = [one.model_dump() for one in begun.evaluations.read()]
        print(json.dumps({"run": str(begun.root), "evaluations": found}))
    else:
        show_evaluation(begun)
    return 0


def _same(begun: RunDirectory, recipe: Recipe, asked: EvaluationInfo) -> EvaluationInfo:
    """What the directory says that it evaluates; refuses to mix that with anything else."""
    held = begun.info().evaluation
    given = {"run", "unsafe", "record", "replay"}
    if held is None or held.model_dump(include=given) != asked.model_dump(include=given):
        what = "a training run" if held is None else "an evaluation of something else, or with other tools"
    elif (old := check(recipe_of(begun))) != (new := check(recipe)):
        changed = "; ".join(differing_settings(old, new)[:_SETTINGS_SHOWN])
        what = "an evaluation with other settings" + (f" (its own | those given: {changed})" if changed else "")
    else:
        return held
    raise RunError(
        f"{begun.root} holds {what}",
        cause="results under several settings would be counted as one",
        fix=f"choose another directory with --out, or go on with that one: midstream resume {begun.root}",
    )


def _evaluated(
    root: Path, begun: RunDirectory | None, build: Build, asked: EvaluationInfo, options: argparse.Namespace
) -> RunDirectory:
    """The directory with every set done; whatever happens, what has ended is kept in it."""
    console = Console(stderr=True)
    parts = _parts(build)
    tasks = {part.chosen.name: _digest(part.tasks) for part in parts}
    step = digest = None
    weights = ""
    if asked.run:
        trained = RunDirectory.open(Path(asked.run))
        step = commands.use_policy(build, trained, asked.step)
        digest = trained.checkpoints.digest(step)
        weights = commands.weights_digest(trained, step)
    if begun is None:
        begun = _created(root, build, asked.model_copy(update={"tasks": tasks, "step": step, "checkpoint": digest}))
    _check_unchanged(begun, tasks, digest)
    commands.check_lessons(begun, build)
    commands.tell_sandbox(build, options)
    commands.tell_library(build, weights)
    _tell_left_out(build, console)
    with begun.lock(), commands.leaving_status(begun, console):
        _drop_done(begun)
        if options.retry_errors:
            _reopen(begun, parts)
        with terminal_progress("evaluation", console, quiet=options.quiet) as display:
            _work(begun, build, parts, step, display)
    return begun


def _tell_left_out(build: Build, console: Console) -> None:
    """A set that is not all of its data says so, also where progress is not shown."""
    for chosen in build.recipe.evaluation.sets:
        source = build.tasks(chosen.tasks or build.recipe.tasks)
        left_out = source.left_out.get(chosen.split, {}) if isinstance(source, Finite) else {}
        for reason, count in left_out.items():
            console.print(Text(visible(f"warning: {chosen.name}: {count:,} left out: {reason}"), "yellow"))


def _parts(build: Build) -> list[Part]:
    """Every set of the recipe at every temperature, with its tasks and its environment."""
    config = build.recipe.evaluation
    if not config.sets:
        raise RecipeError(
            f"recipe {build.recipe.name!r} has nothing to evaluate on",
            cause="it has no [[evaluation.sets]]",
            fix='name one, e.g. --benchmark bamboogle, or add one: name = "test", split = "test", per_family = 60',
        )
    tasks = {chosen.name: build.set_tasks(chosen) for chosen in config.sets}
    return [
        Part(
            chosen=chosen,
            temperature=temperature,
            tasks=tasks[chosen.name],
            environment=build.environment(temperature=temperature, chosen=chosen),
        )
        for chosen, temperature in product(config.sets, config.temperatures)
    ]


def _created(root: Path, build: Build, asked: EvaluationInfo) -> RunDirectory:
    recipe = build.recipe
    return RunDirectory.create(
        root,
        recipe_toml=to_toml(build.resolved),
        recipe_name=recipe.name,
        seed=recipe.seed,
        resolved=build.resolved,
        evaluation=asked,
        lessons=lessons.digest(build.lessons),
    )


def _digest(tasks: Sequence[Task]) -> str:
    """How many tasks, and a digest of all that they are."""
    text = "\n".join(task.model_dump_json() for task in tasks)
    return f"{len(tasks)} tasks {blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=12).hexdigest()}"


def _check_unchanged(begun: RunDirectory, tasks: Mapping[str, str], checkpoint: str | None) -> None:
    """Refuse tasks or weights that are not those the directory began with: results on both would be counted as one."""
    held = begun.info().evaluation or EvaluationInfo()
    for name, digest in tasks.items():
        if held.tasks.get(name) != digest:
            raise RunError(
                f"the tasks of set {name!r} are not those that {begun.root} began with: {held.tasks.get(name)}, "
                f"now {digest}",
                cause="its file or data set was changed; results on both would be counted as one",
                fix="restore it, or begin a new evaluation with another --out",
            )
    if held.checkpoint != checkpoint:
        raise RunError(
            f"step {held.step} of {held.run} has other weights than when {begun.root} began with it",
            cause="it was trained again in place; results of both would be counted as one",
            fix="begin a new evaluation, with another --out",
        )


def _drop_done(run: RunDirectory) -> None:
    """Remove what a crash left in the journal of sets whose numbers are written."""
    done = {evaluation.result_name(one.set_name, one.sampling) for one in run.evaluations.read()}
    results.keep(run.results_path, lambda name, failed: name not in done)


def _reopen(run: RunDirectory, parts: Sequence[Part]) -> None:
    """Forget what ended in an infrastructure error, also in sets that are done: they will be run again.

    What has a result is in the journal before the set's numbers go: a crash in between loses nothing.
    """
    results.keep(run.results_path, lambda name, failed: not failed)
    broken = {(one.set_name, one.sampling) for one in run.evaluations.read() if one.errors}
    for part in parts:
        if part.key in broken:
            with Journal(run.results_path) as journal:
                whole = [one for one in run.trajectories.read_evaluation(part.name) if one.status == "ok"]
                results.append(journal, part.name, whole)
    run.evaluations.filter(lambda record: (record["set_name"], record["sampling"]) not in broken)


def _work(run: RunDirectory, build: Build, parts: Sequence[Part], step: int | None, listener: Listener) -> None:
    """Run every set that has no numbers yet; one that ends without any result does not keep the others from running."""
    trials = build.recipe.evaluation.trials
    written = {(one.set_name, one.sampling) for one in run.evaluations.read()}
    sizes = {part.key: len(part.tasks) * trials for part in parts}
    done = sum(sizes[part.key] for part in parts if part.key in written)
    listener(
        RunStarted(
            recipe=build.recipe.name, directory=str(run.root), total=sum(sizes.values()), done=done, sets=len(parts)
        )
    )
    lost: list[str] = []
    for place, part in enumerate(parts, start=1):
        if part.key not in written:
            kept = [one.trajectory for one in results.read(run.results_path) if one.set == part.name]
            listener(SetStarted(place=place, name=" ".join(part.key), total=sizes[part.key], kept=kept))
            lost += _work_on(run, build, part, step, kept, listener)
    if lost:
        root = shlex.quote(str(run.root))
        others = f"; the other sets: midstream show {root}" if len(lost) < len(parts) else ""
        raise InfrastructureError("\n".join(lost), fix=f"see to that, then: midstream resume {root}{others}")
    listener(RunFinished())


def _work_on(
    run: RunDirectory,
    build: Build,
    part: Part,
    step: int | None,
    kept: Sequence[Trajectory],
    listener: Listener,
) -> list[str]:
    """Run what is not `kept` of a set, then write its trajectories and numbers; returns why there are none.

    Without a single result there are no numbers: nothing was learnt about the agent, so the set is to be run again.
    """
    name = " ".join(part.key)
    with Journal(run.results_path, report=lambda text: listener(Note(text))) as journal:

        def on_done(trajectories: Sequence[Trajectory]) -> None:
            results.append(journal, part.name, trajectories)
            listener(TrajectoriesFinished(trajectories))

        result, trajectories = _evaluate(build, part, step, kept, on_done)
    run.trajectories.write_evaluation(part.name, trajectories)
    errors = [one.error for one in trajectories if one.error]
    lost = []
    if len(errors) < len(trajectories):
        run.evaluations.append(result)
        listener(EvaluationFinished(result))
    else:
        lost = [f"all {len(errors)} runs on {name} ended without a result; the first:\n{errors[0].message}"]
        listener(Note(f"{name}: no run had a result, {counted(len(errors), 'error')}"))
    results.keep(run.results_path, lambda name, failed: name != part.name)
    return lost


def _evaluate(
    build: Build, part: Part, step: int | None, kept: Sequence[Trajectory], on_done: OnDone | None
) -> tuple[EvaluationResult, list[Trajectory]]:
    return asyncio.run(
        evaluation.evaluate(
            part.environment,
            part.tasks,
            policy=build.recipe.name,
            chosen=part.chosen,
            temperature=part.temperature,
            seed=derive_seed(build.recipe.seed, "evaluation", part.chosen.name),
            step=step,
            trials=build.recipe.evaluation.trials,
            kept={(one.task_id, one.rollout_index): one for one in kept},
            on_done=on_done,
        )
    )
