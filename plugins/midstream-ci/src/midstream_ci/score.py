"""`midstream score EVALUATION --reward F`: score stored answers again, without a request to the agent's model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import midstream as ms
from midstream.cli import options as shared
from midstream.cli.show import show_done
from midstream.core.errors import RunError, UnsupportedError
from midstream.process import Place, RunOptions
from midstream.recipe.check import is_dialogues
from midstream.recipe.inputs import run_recipe, run_table
from midstream.recipe.schema import parse_recipe
from midstream.runs import RunDirectory
from midstream_ci import after_eval

HELP = "score the stored answers of an evaluation again, with another reward"
# What the stored runs do not need, and what only says how to learn.
_LEFT_OUT = ("agent", "tools", "training", "lessons", "warm_start", "learner")


class ScoreOptions(RunOptions, total=False):
    """Arguments of `score` that `midstream.evaluate` has."""

    overrides: Sequence[str]


def score(
    evaluation: ms.Run | str | Path, reward: object, *, out: Place | None = None, **options: Unpack[ScoreOptions]
) -> ms.Run:
    """Score the stored runs of an evaluation with another reward, as a new evaluation.

        again = score("runs/first", my_reward)
        ms.compare(score("runs/second", my_reward), again)

    The agent's model is not asked, and no tool is called; a judge is. What is done is kept: the same call with the same
    `out` scores only the rest.

    Args:
        evaluation: a finished evaluation, or its directory.
        reward: a function, a reward's name, or its table.
        out: the new directory, by default one under `runs/`.
        options: as of `midstream.evaluate`.

    Raises:
        RunError: the directory is no finished evaluation.
        UnsupportedError: its tasks are dialogues, whose outcome is a state that is not stored.
    """
    run = evaluation.directory if isinstance(evaluation, ms.Run) else RunDirectory.open(Path(evaluation))
    if run.info().kind != "evaluation":
        what, fix = f"{run.root} holds a {run.info().kind} run, and no evaluation", f"midstream eval {run.root}"
        raise RunError(what, code="wrong-kind-of-run", fix=fix)
    if run.status().state != "finished":
        fix = f"midstream resume {run.root}"
        raise RunError(f"the evaluation in {run.root} has not ended", code="wrong-kind-of-run", fix=fix)
    table = run_table(run)
    if is_dialogues(parse_recipe(table).tasks):
        raise UnsupportedError(
            f"{run.root} holds dialogues, which cannot be scored again",
            code="dialogues-not-supported",
            cause="what a dialogue is scored by is the state at its end",
            fix="evaluate again with the other reward: midstream eval RECIPE --reward ...",
        )
    kept: dict[str, Any] = {name: value for name, value in table.items() if name not in _LEFT_OUT}
    # A stored trajectory is what a strategy made.
    kept["evaluation"] = {key: value for key, value in table["evaluation"].items() if key != "strategy"}
    kept |= {"name": f"{table['name']}-scored", "agent": {"type": "stored", "run": str(run.root.resolve())}}
    return ms.evaluate(kept, reward=reward, out=out, **options)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `score`."""
    parser.add_argument("evaluation", help="directory of a finished evaluation")
    shared.add(parser, "--reward", "--out", "--set", "--trust", *shared.OUTPUT)
    after_eval.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Score, show the new evaluation, and decide its requirements."""
    # Engines that only the stored runs asked need no price: they are not asked again.
    after_eval.check_sets(options, run_recipe(RunDirectory.open(Path(options.evaluation))))
    found = score(
        options.evaluation,
        options.reward,
        out=options.out,
        overrides=options.overrides,
        quiet=options.quiet,
    )
    show_done(found.directory, as_json=options.json)
    return after_eval.finish(options, found)
