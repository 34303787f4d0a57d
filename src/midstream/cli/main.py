"""The command line: `midstream COMMAND`. Each command is a module of this package, imported when it is used.

A package adds commands as entry points. Their modules have `HELP`, `add_arguments(parser)` and `run(options)`:

    [project.entry-points."midstream.commands"]
    greet = "my_package.greet"
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from itertools import pairwise
from typing import Any

from midstream.cli.options import extensions
from midstream.core.errors import MidstreamError, UsageError, did_you_mean
from midstream.core.terminal import clean_output
from midstream.core.version import __version__

COMMANDS = {
    "init": "write a small working project",
    "train": "train weights or learn lessons, as a recipe says",
    "resume": "resume an interrupted run or evaluation",
    "eval": "evaluate a recipe's agent, or what a run learned",
    "solve": "answer one question, turn by turn",
    "serve": "answer clients with an agent",
    "list": "recipes, benchmarks, tools and other components; one in full",
    "doctor": "what works on this machine; does a model's server answer?",
    "call": "call a tool by hand, or see what it takes",
    "models": "small models for this process; fetch one, merge an adapter",
    "view": "look at runs in the browser, live too, or write a page",
    "show": "numbers of a run, or one trajectory",
    "compare": "which of several evaluations is better, how surely",
    "export": "write trajectories for trainers, or as a table",
    "lessons": "look at an agent's lessons, edit, test them",
}

EXAMPLES = """examples:
  midstream solve "..." --base-url http://localhost:11434/v1 --model qwen2.5:7b
  midstream eval agentflow-prompted --model gpt-4o-mini --benchmark bamboogle
  midstream train mine.toml --set training.steps=5
  midstream resume runs/demo           after Ctrl-C, a kill or a power cut
  midstream show runs/demo             numbers; add an id for one trajectory
  midstream view runs/demo             every rollout, in the browser
  midstream compare runs/a runs/b      is b better than a, and how sure is that?
  midstream list tools                 what agents can call, and what each needs
  midstream call python "105 + 7"      call a tool by hand
  midstream doctor                     what works on this machine?"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal without UTF-8 must not end a run.
        sys.stdout.reconfigure(errors="backslashreplace")
    if words[:1] in ([], ["help"]):
        words = [*words[1:], "--help"]
    with clean_output():
        return _run(words)


def _run(words: Sequence[str]) -> int:
    try:
        options = _parse(words)
        _check_words(words)
        if "TORCHELASTIC_RUN_ID" in os.environ:
            from midstream.torchrun import end_with_parent

            end_with_parent()
        elif getattr(options, "nproc", 1) > 1 and not (options.command == "train" and options.dry_run):
            from midstream.torchrun import launch

            return launch(options.nproc, words)
        if getattr(options, "trust", False):
            from midstream.components.own import TRUST

            os.environ[TRUST] = "1"
        # With an option of a package a command may do something else, such as `train --try`.
        for package in extensions(options.command):
            if hasattr(package, "instead") and (code := package.instead(options)) is not None:
                return code
        return _module(options.command).run(options)
    except MidstreamError as error:
        if "TORCHELASTIC_RUN_ID" in os.environ:
            from midstream.torchrun import report_after_rank_0

            report_after_rank_0()
        print(f"error[{error.code}]: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt as error:
        # The note says how to resume the run.
        for note in getattr(error, "__notes__", ("stopped",)):
            print(f"\n{note}", file=sys.stderr)
        # Or Python looks for cycles in what a thousand trajectories leave, a second at exit.
        gc.freeze()
        return 130
    except BrokenPipeError:
        # The reader of the output (`| head`) has seen enough; Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        print(f"error[system]: {error.filename or 'the system'}: {error.strerror or error}", file=sys.stderr)
        print("  fix: check its path, permissions and free space", file=sys.stderr)
        return 1


class Parser(argparse.ArgumentParser):
    """Names the command or value that a misspelt one may mean."""

    def _check_value(self, action: argparse.Action, value: str) -> None:
        if action.choices is not None and value not in action.choices and (near := did_you_mean(value, action.choices)):
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}; {near.strip()}")
        super()._check_value(action, value)

    def arguments(self) -> Iterator[argparse.Action]:
        """Its arguments, and those of its subcommands."""
        for action in self._actions:
            yield action
            if isinstance(action, argparse._SubParsersAction):
                for below in action.choices.values():
                    yield from below.arguments()


def parser(command: str | None = None) -> Parser:
    """The parser of every command, or of one `command`; of "" those of all, without their arguments, for the help."""
    root = Parser(
        prog="midstream",
        description="Agents that plan and call tools, made better in the flow by their own outcomes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"midstream {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in [command] if command in COMMANDS else (*COMMANDS, *_installed()):
        text = COMMANDS.get(name, "")
        if not text and not command:
            # Importing the modules of packages takes a second, so only the help does.
            try:
                text = _module(name).HELP
            except ImportError as error:
                # A package that is half installed must not hide the others.
                text = f"cannot be imported: {error}"
        parser_of_command = commands.add_parser(name, help=text)
        if command in (None, name):
            for module in (_module(name), *extensions(name)):
                module.add_arguments(parser_of_command)
    return root


@cache
def _installed() -> dict[str, str]:
    """The modules of installed packages' commands."""
    return {point.name: point.value for point in entry_points(group="midstream.commands") if point.name not in COMMANDS}


def _module(command: str) -> Any:
    return import_module(_installed().get(command) or f"midstream.cli.{command}")


def _parse(words: Sequence[str]) -> argparse.Namespace:
    helps = not {"-h", "--help"}.isdisjoint(words)
    root = parser(next((word for word in words if word in COMMANDS or word in _installed()), "" if helps else "-"))
    options, left = root.parse_known_args(words)
    if not any(word.startswith("-") for word in left):
        # argparse does not see to positional arguments after options, such as `call python --quiet "105 + 7"`.
        if options.command == "call":
            options.arguments, left = [*options.arguments, *left], []
        elif options.command == "solve" and left:
            root.error(f'put the question in quotes: midstream solve "{" ".join([options.question, *left])}"')
    if left:
        known = [option for action in root.arguments() for option in action.option_strings]
        near = "".join(did_you_mean(word.partition("=")[0], known) for word in left if word.startswith("-"))
        root.error(f"unrecognized arguments: {' '.join(left)}" + (f"; {near.strip()}" if near else ""))
    return options


def _check_words(words: Sequence[str]) -> None:
    """Refuse anything but UTF-8 (a run directory holds the command line as JSON), and options with an empty value."""
    for before, word in pairwise(["", *words]):
        option, sign, value = word.partition("=") if word.startswith("--") else (before, before.startswith("--"), word)
        if sign and not value.strip():
            fix = "give a value, or leave the option out"
            raise UsageError(f"{option} is empty: {value!r}", code="empty-value", fix=fix)
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            fix = "type it again, convert it with iconv, or rename the file"
            raise UsageError(f"an argument is not valid UTF-8: {word!r}", code="not-utf-8", fix=fix)


if __name__ == "__main__":
    sys.exit(main())
