"""`midstream demo`: train a tiny recipe, then show everything there is to see. An interrupted demo resumes.

`--text` trains a small language model in open text instead, and asks it about a country that the user names. Without a
terminal the name and the questions are preset.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator

from rich.text import Text

from midstream import api
from midstream.cli import options as shared
from midstream.cli import solve
from midstream.cli.show import show_result
from midstream.core.errors import MidstreamError
from midstream.core.terminal import Terminal
from midstream.recipe.build import Build
from midstream.recipe.overrides import agent_recipe, changed_recipe
from midstream.report import tables
from midstream.report.progress import progress
from midstream.report.run_results import next_steps, run_limits, samples
from midstream.report.turn_rows import template_of
from midstream.runs import RunDirectory

RECIPE, RUN = "flow-grpo-tiny", "runs/demo"
TEXT_RECIPE, TEXT_RUN = "text-tiny", "runs/demo-text"
PLACE = "Zorbania"
QUESTIONS = ("How high is {}?", "How many people live in the capital of {}?", "How high is Mount Everest?")
FACTS = 9  # documents about a country, its capital and its river


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `demo`."""
    shared.add(parser, *shared.RECIPE, "--out", *shared.OUTPUT)
    parser.add_argument("--no-resume", action="store_true", help="refuse to resume a demo that was interrupted")
    parser.add_argument(
        "--text", action="store_true", help="in open text: train a small language model, then ask it (not with --json)"
    )


def run(options: argparse.Namespace) -> int:
    """Train, then show the results, one question turn by turn, the limits, and what to try next."""
    name, root = (TEXT_RECIPE, TEXT_RUN) if options.text else (RECIPE, RUN)
    recipe = changed_recipe(name, overrides=options.overrides, seed=options.seed)
    if options.dry_run:
        return shared.dry_run(recipe, options, "train")
    with progress(quiet=options.quiet) as listener:
        run = api.train(recipe, options.out or root, exist_ok=not options.no_resume, listener=listener)
    show_result(run, as_json=options.json)
    if options.json:
        return 0
    console, resolved = Terminal(), run.info().resolved
    console.print(Text("One held-out question, turn by turn\n", "bold"))
    for _, trajectory in samples(run)[-1:]:
        console.print(tables.trajectory_view(trajectory, template=template_of(resolved)))
    seconds = sum(timing.cpu_s for timing in run.timings.read())
    console.print(f"\nReport: {run.report_path}   (training steps took {seconds:.0f} CPU-seconds)")
    if options.text:
        _ask(run, console)
    console.print(Text("\nLimits", "bold"))
    console.print(run_limits(resolved))
    console.print(Text("\nNext", "bold"))
    for line in next_steps(run):
        console.print(f"  {line}", soft_wrap=True)
    if not options.text:
        console.print("  midstream demo --text     # in open text, with questions of your own", soft_wrap=True)
    return 0


def _ask(run: RunDirectory, console: Terminal) -> None:
    """Ask the agent about a country that the user names, and whatever the user types."""
    typed = sys.stdin is not None and sys.stdin.isatty()
    console.print(Text("\nQuestions of your own", "bold"))
    while True:
        place = (_line(f"Name a country that is on no map, in Latin letters [{PLACE}]: ") if typed else "") or PLACE
        setting = f"tasks.places={json.dumps([place], ensure_ascii=False)}"
        try:
            with Build(agent_recipe(run, overrides=[setting])) as build:
                documents = [text for _, text in build.source.documents()]
            break
        except MidstreamError as error:  # a name that the atlas cannot have
            if not typed:
                raise
            console.print(f"{error}\n")
    console.print(f"\nThese sentences about {place} are in the atlas now:\n")
    for text in documents[-FACTS:]:
        console.print(f"  {text}")
    parser = argparse.ArgumentParser()
    solve.add_arguments(parser)
    for question in _questions(place, typed=typed):
        command = ["--planner", str(run.root), "--set", setting, "--", question]
        console.print(Text(f"\n$ midstream solve {shlex.join(command)}\n", "bold"), soft_wrap=True)
        solve.run(parser.parse_args(command))


def _questions(place: str, *, typed: bool) -> Iterator[str]:
    yield from (question.format(place) for question in QUESTIONS)
    while typed and (question := _line("\nAsk a question (Enter ends): ")):
        yield question


def _line(prompt: str) -> str:
    try:
        return input(prompt).strip().encode(errors="replace").decode()  # bytes that are no text
    except EOFError:
        return ""
