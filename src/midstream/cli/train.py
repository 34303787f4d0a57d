"""`midstream train RECIPE`: train weights, or learn lessons.

`--try` plays some tasks and makes one update before anything is trained, and says whether training can work.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from midstream import api
from midstream.cli import options as shared
from midstream.cli.show import show_done
from midstream.core.errors import UsageError
from midstream.process import RunOptions
from midstream.recipe.overrides import LearningChanges, changed_recipe
from midstream.report.blocks import Block, facts

if TYPE_CHECKING:
    from midstream.training.trial import RecipeTrial


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `train`."""
    parser.add_argument("recipe", help="name of a recipe that comes with midstream, or a .toml file")
    shared.add(parser, *shared.SERVER, "--serve-with", "--tools", "--lessons", "--tasks", "--reward")
    shared.add_recording(parser)
    shared.add(parser, "--track", "--budget", "--learner", "--nproc")
    shared.add(parser, *shared.RECIPE, "--out", *shared.OUTPUT)
    text = "play 16 tasks, make one step that is thrown away, and say what decides whether training can work"
    parser.add_argument("--try", dest="trial", action="store_true", help=text)


def run(options: argparse.Namespace) -> int:
    """Train, then show the results."""
    recipe = changed_recipe(options.recipe, **shared.changes(LearningChanges, options))
    if options.dry_run:
        return shared.dry_run(recipe, options, "train")
    if options.trial:
        for name in ("out", "record", "replay", "track"):
            if getattr(options, name):
                what, fix = f"--{name} does nothing with --try, which keeps no run", "leave it out"
                raise UsageError(what, code="option-without-effect", fix=fix)
        with shared.spinner("playing 16 tasks, then one step", silent=options.quiet):
            trial = api.try_training(recipe)
        return shared.show(options, trial.model_dump(), [_screen(trial)])
    run = api.train(recipe, out=options.out, exist_ok=False, **shared.changes(RunOptions, options))
    show_done(run.directory, as_json=options.json)
    return 0


def _screen(trial: RecipeTrial) -> Block | None:
    step = trial.rollout_s + trial.update_s
    rows = [
        ("readable turns", f"{trial.readable:.0%} of {trial.turns}" if trial.turns else "none: no reply called a tool"),
        ("contrast", f"{trial.contrast:.0%} of {trial.tasks} groups have both outcomes: what there is to learn from"),
        ("success", f"{trial.success:.0%} of {trial.tasks * trial.group_size}"),
        ("tools", ", ".join(f"{name} {share:.0%}" for name, share in trial.tools.items())),
        ("a step", f"{step:.0f} s: rollouts {trial.rollout_s:.0f} s, update {trial.update_s:.0f} s"),
        (f"{trial.steps} steps", f"{trial.training_s / 60:.1f} minutes, without evaluations"),
        ("peak memory", f"{trial.memory_gb:.1f} GB"),
        *(("change", words) for words in trial.advice or ("nothing: train it",)),
    ]
    return facts(rows)
