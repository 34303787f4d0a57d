"""Options that several commands have, and the dry run."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from midstream.core.terminal import Terminal
from midstream.core.text import counted
from midstream.view import MAX_MB

if TYPE_CHECKING:
    from rich.status import Status

    from midstream.recipe.schema import Recipe
    from midstream.report.blocks import Block

# Imports within functions spare each command what only others need.

ChangesT = TypeVar("ChangesT")


def parse_count(text: str) -> int:
    """The value of an option that counts something."""
    if not text.isdecimal() or not 1 <= len(text.lstrip("0")) <= 9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 999,999,999")
    return int(text)


class _Joined(argparse.Action):
    """Several values as one text, with commas between."""

    def __call__(self, *given: Any) -> None:
        _, namespace, value, _ = given
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, f"{before}, {value}" if before else value)


OPTIONS: dict[str, dict[str, Any]] = {
    "--set": {
        "dest": "overrides", "action": "append", "default": [], "metavar": "A.B=C", "help": "change one setting",
    },
    "--budget": {
        "action": _Joined, "metavar": "LIMIT",
        "help": 'at most, e.g. "2 usd", "500 rollouts", "1000000 tokens, 3600 seconds"',
    },
    "--nproc": {
        "type": parse_count, "default": 1, "metavar": "N",
        "help": "train in N processes, as many as there are GPUs",
    },
    "--learner": {
        "metavar": "NAME", "help": "the learner that trains in place of this machine, of an installed package",
    },
    "--seed": {"metavar": "N", "help": "the run seed, a whole number"},
    "--dry-run": {"action": "store_true", "help": "validate and print the resolved recipe, start nothing"},
    "--trust": {"action": "store_true", "help": "run the code that came with a run"},
    "--model": {"metavar": "NAME", "help": "a model, by its name on the server"},
    "--base-url": {"metavar": "URL", "help": "the server, e.g. http://localhost:11434/v1 (Ollama)"},
    "--provider": {"metavar": "NAME", "help": "the server by name, e.g. ollama, vllm; a wrong name lists them"},
    "--serve-with": {"metavar": "NAME", "help": "start the model's server, and end it: vllm, llama_cpp, ..."},
    "--tools": {"metavar": "A,B", "help": "exactly these tools, or none; a wrong name lists them"},
    "--tasks": {"metavar": "FILE", "help": "learn from these questions, or from FILE.py:FUNCTION"},
    "--reward": {"metavar": "TYPE", "help": "what scores the answers, e.g. exact_match, judge, or FILE.py:NAME"},
    "--lessons": {"metavar": "LESSONS", "help": "lessons in the prompts: a lesson run, RUN@VERSION, or a file"},
    "--strategy": {
        "metavar": "SPEC", "help": "several runs and one answer, by an installed strategy, e.g. dser:K=8,T=4",
    },
    "--retry-errors": {
        "action": "store_true", "help": "of an evaluation: run again what ended in an infrastructure error",
    },
    "--unsafe": {"action": "store_true", "help": "run code that a model writes without a sandbox"},
    "--out": {"help": "run directory (default: a new one under runs/)"},
    "--cache": {
        "type": Path, "metavar": "DIR", "help": "keep replies of served models, and find those that were asked before",
    },
    "--track": {
        "metavar": "A,B", "default": (), "help": "send metrics to trackers, or FILE.py:NAME; a wrong name lists them",
    },
    "--max-mb": {
        "metavar": "MB", "type": float, "default": MAX_MB,
        "help": f"of --file: trajectories are chosen until it has about this size (default: {MAX_MB:g})",
    },
    "--json": {"action": "store_true", "help": "print results as JSON on standard output"},
    "--quiet": {"action": "store_true", "help": "no progress"},
}  # fmt: skip
SERVER = ("--model", "--base-url", "--provider")
RECIPE = ("--set", "--seed", "--dry-run", "--trust")
OUTPUT = ("--json", "--quiet")


def extensions(command: str) -> list[Any]:
    """The modules of installed packages that add options to a command (docs/extending.md)."""
    return [point.load() for point in entry_points(group="midstream.options") if point.name == command]


def finish(options: argparse.Namespace, result: object) -> int:
    """Hand a command's result to the packages that added options to it; returns the exit code, their highest."""
    return max((module.finish(options, result) for module in extensions(options.command)), default=0)


def add(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add these `OPTIONS`."""
    for name in names:
        parser.add_argument(name, **OPTIONS[name])


def add_list(parser: argparse.ArgumentParser, name: str, dest: str, metavar: str, text: str) -> None:
    """Add an option that may be given several times."""
    parser.add_argument(name, dest=dest, action="append", default=[], metavar=metavar, help=text)


def add_recording(parser: argparse.ArgumentParser) -> None:
    """Add `--record` and `--replay`, of which one may be given."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--record", type=Path, metavar="DIR", help="keep what tools answer, and answer from there")
    group.add_argument("--replay", type=Path, metavar="DIR", help="answer from there alone; no tool is called")


def changes(kind: Callable[..., ChangesT], options: argparse.Namespace) -> ChangesT:
    """What the options change in a recipe, as `AgentChanges`, or as a kind with more keys."""
    # Half a second that other commands need not spend.
    from midstream.recipe.overrides import changes_in

    return changes_in(kind, vars(options))


def allow_interrupts() -> None:
    """Have Ctrl-C and SIGTERM end what serves until then."""
    # SIGINT is ignored in a shell's background.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def spinner(words: str, *, silent: bool) -> AbstractContextManager[Status | None]:
    """Show on standard error that work is under way."""
    from rich.text import Text

    return nullcontext() if silent else Terminal(stderr=True).status(Text(words))


def show(
    options: argparse.Namespace, record: Any, parts: Iterable[Block | None], names: Iterable[str] | None = None
) -> int:
    """Print what a command found or did: `record` as JSON, only the `names` with `--quiet`, or the blocks."""
    if options.json:
        print(json.dumps(record, ensure_ascii=False))
    elif options.quiet and names is not None:
        print("\n".join(names))
    else:
        from midstream.report import draw

        draw.show(parts)
    return 0


def written(line: str, left_out: Mapping[str, int]) -> list[Block | None]:
    """What a command has written, and how many trajectories it left out and why."""
    from midstream.report.blocks import code

    lines = (f"  {counted(count, 'trajectory', 'trajectories')} left out: {why}" for why, count in left_out.items())
    return [code("\n".join([line, *lines]))]


def dry_run(recipe: Recipe, options: argparse.Namespace, work: Literal["train", "eval", "other"] = "other") -> int:
    """Validate everything and print the resolved recipe; for training and evaluation also what they would do.

    Then raise an error if the recipe needs something that is not on this machine.
    """
    from pydantic_core import to_jsonable_python

    from midstream.core.events import Note
    from midstream.recipe.build import Build, sampling_notes, unset_keys
    from midstream.recipe.estimate import counts, describe
    from midstream.recipe.files import to_toml
    from midstream.recipe.sessions import check_work
    from midstream.report.progress import print_warnings
    from midstream.trackers import trackers_of

    # Refuses a wrong name.
    trackers_of(getattr(options, "track", ()))
    with Build(recipe, replay=getattr(options, "replay", None)) as build:
        plan = [] if work == "other" else describe(build, training=work == "train")
        if work == "train":
            if recipe.training and getattr(options, "nproc", 1) > 1:
                plan.append("The memory is that of one process.")
            plan += recipe.learner.plan(build, Path(options.out or "RUN"))
        if not options.json:
            print("\n".join([*(f"# {line}" for line in plan), to_toml(build.resolved)]), flush=True)
        away = check_work(build, work)
        if options.json:
            record: dict[str, Any] = {"recipe": build.resolved}
            if plan:
                record |= {"at_most": counts(build, training=work == "train"), "plan": plan, "not_drawn": away}
            print(json.dumps(to_jsonable_python(record, inf_nan_mode="strings")))
        elif away:
            print(f"# Not drawn, because they would be downloaded: the tasks of {', '.join(away)}")
        unset = [f"engines.{name}: {variable} is not set" for name, variable in unset_keys(build).items()]
        for note in (*sampling_notes(recipe), *unset):
            print_warnings(Note(note))
    return 0
