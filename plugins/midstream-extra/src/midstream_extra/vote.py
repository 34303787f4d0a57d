"""`midstream vote`: for or against a lesson or a text, and the votes that count."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from midstream.cli import options as shared
from midstream.report.blocks import Block, code, table
from midstream.report.numbers import counted
from midstream_extra.votes import VOTES, Vote, cast_vote, read_votes, votes_path

HELP = "votes on lessons and texts: near three against, others are held back"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `vote`, each with its arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, function: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=text)
        made.set_defaults(run_action=function)
        text = f"file of votes (default: the run's, {VOTES})"
        made.add_argument("--project", type=Path, metavar="FILE", help=text)
        shared.add(made, *shared.OUTPUT)
        return made

    for value in ("for", "against"):
        made = action(value, add_vote, f"vote {value} a lesson or a text")
        text = "a lesson run, one version of its lesson set (RUN@VERSION), or a file; without LESSON, the text itself"
        made.add_argument("named", metavar="LESSONS", help=text)
        made.add_argument("lesson", metavar="LESSON", nargs="?", default="", help="its id, e.g. L3")
    made = action("list", list_votes, "the votes of people and of the gate that count")
    made.add_argument("named", metavar="RUN", nargs="?", help="of the project of this run")


def run(options: argparse.Namespace) -> int:
    """Run `midstream vote ACTION`."""
    return options.run_action(options)


def add_vote(options: argparse.Namespace) -> int:
    """Add a person's vote to the project's."""
    given, place = cast_vote(options.named, options.lesson, options.action, options.project)
    record = {"votes": str(place), "vote": given.model_dump(mode="json")}
    total = code(f"{place}: {counted(len(read_votes(place)), 'vote')}")
    return shared.show(options, record, [votes_table([given]), total])


def list_votes(options: argparse.Namespace) -> int:
    """Print the votes that count."""
    found = read_votes(votes_path(options.named, options.project))
    return shared.show(options, [vote.model_dump(mode="json") for vote in found], [votes_table(found)])


def votes_table(votes: Sequence[Vote]) -> Block | None:
    """One line a vote: its value, the voter, the lesson with its run, and the text."""
    rows = [[vote.value, vote.by, f"{Path(vote.run).name} {vote.lesson}".strip(), vote.text] for vote in votes]
    return table("", ("vote", "by", "lesson", "text"), rows, left=4)
