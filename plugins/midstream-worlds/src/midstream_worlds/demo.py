"""`midstream demo`: train a tiny recipe, then show everything there is to see. An interrupted demo resumes.

`--text` trains a small language model in open text instead, and asks it about a country that the user names. `--real`
trains a real one to use a tool, and asks a question before and after. Without a terminal all of it is preset.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from midstream import api
from midstream.cli import options as shared
from midstream.cli import solve
from midstream.cli.show import show_done, show_result
from midstream.core.errors import MidstreamError, UsageError
from midstream.core.terminal import Terminal
from midstream.engines.local.catalog import fetch
from midstream.recipe.build import Build
from midstream.recipe.overrides import agent_recipe, changed_recipe
from midstream.recipe.schema import Recipe
from midstream.report.progress import progress
from midstream.report.run import samples
from midstream.runs import RunDirectory

RECIPE, RUN = "flow-grpo-tiny", "runs/demo"
TEXT_RECIPE, TEXT_RUN = "text-tiny", "runs/demo-text"
REAL_RECIPE, OTHER_RECIPE, REAL_RUN = "tool-use-135m", "tool-use-small", "runs/demo-real"
REAL_MODEL = "smollm2"
SUM = "How much is 58 * 74 - 219?"
PLACE = "Zorbania"
QUESTIONS = ("How high is {}?", "How many people live in the capital of {}?", "How high is Mount Everest?")
START = {
    RECIPE: "A planner of half a million parameters learns to plan searches and sums in a made-up world, offline: "
    "about 4 minutes on 2 cores.",
    TEXT_RECIPE: "A language model of one million parameters learns to search and calculate in open text, offline: "
    "about 6 minutes on 2 cores.",
    REAL_RECIPE: "SmolLM2, a real language model of 135 million parameters, learns to calculate with Python: about 4 "
    "to 12 minutes on 2 cores.",
    OTHER_RECIPE: "A real language model learns to calculate with Python instead of in its head.",
}
LIMITS = {
    RECIPE: "The planner knows its made-up world alone, and questions of up to three turns. It shows that loop, "
    "credit and update work, not how much a large model gains (docs/limits.md).",
    TEXT_RECIPE: "The model knows the language of a made-up atlas alone. It shows that loop, masks and update work, "
    "not how much a large model gains (docs/limits.md).",
    REAL_RECIPE: "One kind of question, one tool. What real models learned so far: docs/models.md.",
    OTHER_RECIPE: "Two kinds of questions, one tool. What real models learned so far: docs/models.md.",
}
HELP = "train a tiny planner offline, show that it became better"
FACTS = 9  # documents about a country, its capital and its river


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `demo`."""
    shared.add(parser, "--set", "--seed", "--dry-run", "--out", *shared.OUTPUT)
    parser.add_argument("--no-resume", action="store_true", help="refuse to resume a demo that was interrupted")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--text", action="store_true", help="in open text: train a small language model, then ask it (not with --json)"
    )
    kind.add_argument("--real", action="store_true", help="with a real language model, which is fetched: SmolLM2")
    parser.add_argument("--model", metavar="NAME", help="with --real: another model than SmolLM2, local/NAME")


def run(options: argparse.Namespace) -> int:
    """Train, then show on one screen what changed, where to look at it, its limits, and what to try next."""
    name, root = (TEXT_RECIPE, TEXT_RUN) if options.text else (RECIPE, RUN)
    model = options.model or f"local/{REAL_MODEL}" if options.real else None
    if model:
        name, root = REAL_RECIPE if model == f"local/{REAL_MODEL}" else OTHER_RECIPE, REAL_RUN
    elif options.model:
        fix = "add --real"
        raise UsageError(f"--model {options.model} without --real", code="option-without-effect", fix=fix)
    recipe = changed_recipe(name, overrides=options.overrides, seed=options.seed, model=model)
    if options.dry_run:
        return shared.dry_run(recipe, options, "train")
    if name == REAL_RECIPE:
        with shared.spinner(f"fetching {REAL_MODEL}", silent=options.quiet):
            fetch(REAL_MODEL)
    root = Path(options.out or root)
    finished = (root / "run.json").exists() and RunDirectory.open(root).status().state == "finished"
    if not options.quiet and not finished:
        Terminal(stderr=True).print(_plan(recipe, START[name]), highlight=False)
    with progress(quiet=options.quiet) as listener:
        run = api.train(recipe, out=root, exist_ok=not options.no_resume, listener=listener).directory
    if options.json:
        show_done(run, as_json=True)
        return 0
    show_result(run, short=True)
    console, place = Terminal(), shlex.quote(str(run.root))
    if options.text:
        _ask(run, console)
    elif options.real:
        changes = [word for setting in options.overrides for word in ("--set", setting)]
        _ask_before_and_after(run, ["--recipe", name, "--model", str(model), *changes], console)
    console.print(f"\nReport  {run.report_path}", highlight=False, soft_wrap=True)
    console.print(f"View    midstream view {place}", highlight=False, soft_wrap=True)
    console.print(f"Limits  {LIMITS[name]}", highlight=False)
    console.print(Text("\nNext", "bold"))
    question = next((trajectory.question for _, trajectory in samples(run)[-1:]), "What is 45 plus 17 ?")
    for what, command in (
        ("ask it", f'midstream solve "{question}" --planner {place}'),
        ("own questions", "midstream init mine --kind train"),
        ("another method", "midstream train lessons-simulated --out runs/lessons")
        if options.text
        else ("in open text", "midstream demo --text"),
    ):
        console.print(Text(f"  {what:<13}  ", "dim").append(command, "not dim"), soft_wrap=True)
    return 0


def _plan(recipe: Recipe, start: str) -> str:
    """What is about to happen: how long it takes, and its parts."""
    steps = recipe.training.steps if recipe.training else 0
    parts = ["warm start"] if recipe.warm_start else []
    parts += ["evaluation before training", f"{steps} training steps", "evaluation after training"]
    return f"{start}\nIts parts: {', '.join(parts)}. Ctrl-C stops it, and the same command resumes it.\n"


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


def _ask_before_and_after(run: RunDirectory, before: list[str], console: Terminal) -> None:
    """Ask the model before and after training, greedily: what the user types, or a test question that it solves now."""
    typed = sys.stdin is not None and sys.stdin.isatty()
    known = next((trajectory.question for _, trajectory in samples(run)), SUM)
    question = (_line(f"\nAsk a calculation [{known}]: ") if typed else "") or known
    parser = argparse.ArgumentParser()
    solve.add_arguments(parser)
    for when, whose in (("Before", before), ("After", ["--planner", str(run.root)])):
        command = [*whose, "--temperature", "0", "--", question]
        console.print(Text(f"\n{when}: midstream solve {shlex.join(command)}\n", "bold"), soft_wrap=True)
        solve.run(parser.parse_args(command))
    console.print()


def _questions(place: str, *, typed: bool) -> Iterator[str]:
    yield from (question.format(place) for question in QUESTIONS)
    while typed and (question := _line("\nAsk a question (Enter ends): ")):
        yield question


def _line(prompt: str) -> str:
    try:
        return input(prompt).strip().encode(errors="replace").decode()  # bytes that are no text
    except EOFError:
        return ""
