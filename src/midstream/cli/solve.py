"""`midstream solve QUESTION`: one question, answered by the agent of a recipe or run, shown while it happens."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from midstream import api
from midstream.cli import options as shared
from midstream.core.events import AgentBuilt, Note, RunEvent, ServerStarts, TurnEvent
from midstream.core.terminal import Terminal
from midstream.recipe.overrides import RECIPE, AgentChanges, agent_recipe
from midstream.report.progress import about_agent, print_warnings, server_line
from midstream.report.timeline import Timeline
from midstream.report.trajectory import template_of
from midstream.runs import RunDirectory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `solve`."""
    parser.add_argument("question", help="in quotes")
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--planner", metavar="RUN", help="the planner, or agent, of this run; --model is then for the other modules"
    )
    source.add_argument("--recipe", default=RECIPE, help="the agent of this recipe (default: %(default)s)")
    shared.add(parser, *shared.SERVER, "--serve-with", "--tools", "--lessons", "--strategy")
    parser.add_argument(
        "--temperature", type=float, default=None, metavar="T", help="the planner's temperature (with --planner: 0)"
    )
    shared.add(parser, "--unsafe", "--budget")
    shared.add_recording(parser)
    parser.add_argument("--final", action="store_true", help="print the whole last reply too; with --quiet, instead")
    shared.add(parser, *shared.RECIPE, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Answer the question; returns 1 if the run was lost to an error."""
    source = RunDirectory.open(Path(options.planner)) if options.planner else options.recipe
    if options.dry_run:
        return shared.dry_run(agent_recipe(source, **shared.changes(AgentChanges, options)), options)
    silent, timeline = options.json or options.quiet, None
    with ExitStack() as screen:

        def listen(event: RunEvent) -> None:
            nonlocal timeline
            if isinstance(event, ServerStarts):
                if not silent:
                    Terminal(stderr=True).print(server_line(event), highlight=False, soft_wrap=True)
            elif isinstance(event, AgentBuilt) and not silent:
                template = template_of(event.resolved)
                timeline = Timeline(Terminal(), options.question, about_agent(event), template)
                screen.enter_context(timeline)
            elif isinstance(event, TurnEvent) and timeline is not None:
                timeline.listen(event)
            elif not (isinstance(event, Note) and event.text.startswith(api.NO_ANSWER)):  # shown below, in full
                print_warnings(event)

        given = shared.changes(api.SolveOptions, options)
        given["listener"] = listen
        trajectory = api.solve(
            source, options.question, temperature=options.temperature, unsafe=options.unsafe, **given
        )
        if timeline is not None:
            timeline.finish(trajectory, final=options.final)
    if options.json:
        print(trajectory.model_dump_json())
    elif options.quiet and trajectory.answer is not None:
        print(trajectory.final or trajectory.answer if options.final else trajectory.answer)
    elif options.quiet and trajectory.error is None:
        print(f"no answer after {len(trajectory.turns)} turns", file=sys.stderr)
    if trajectory.error is not None:
        more = "\n(--json prints the whole traceback)" * (trajectory.error.foreign and not options.json)
        print(f"error: {trajectory.error.text}{more}", file=sys.stderr)
    return 0 if trajectory.status == "ok" else 1
