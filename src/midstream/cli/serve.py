"""`midstream serve`: answer clients with an agent, or open sessions for agents that run elsewhere."""

from __future__ import annotations

import argparse
import signal
import sys
from collections import Counter

from midstream import serve
from midstream.cli import options as shared
from midstream.cli.show import show_done
from midstream.components.tables import validate
from midstream.core.errors import UsageError
from midstream.gateway.settings import ServeConfig
from midstream.recipe.overrides import AgentChanges, LearningChanges
from midstream.report.progress import progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `serve`."""
    parser.add_argument("target", help="run directory or recipe")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--sessions", action="store_true", help="open sessions for agents that run elsewhere")
    how.add_argument("--train", action="store_true", help="likewise, with the tasks of the recipe's training")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine alone)")
    parser.add_argument("--port", type=int, default=8321, help="the port (default: 8321)")
    parser.add_argument("--temperature", type=float, default=None, metavar="T", help="the planner's temperature")
    shared.add(
        parser, *shared.SERVER, "--serve-with", "--tools", "--lessons", "--tasks", "--reward", "--unsafe", "--budget"
    )
    shared.add(parser, "--set", "--seed", "--trust", "--out", "--quiet")


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C, or until a service manager ends it."""
    # SIGINT is ignored in a shell's background.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)

    def ready(address: str) -> None:
        if not options.quiet:
            where = f"POST {address}/v1/sessions" if options.train or options.sessions else f"{address}/v1"
            when = "answers" if not options.train else "will answer, once its agent is loaded,"
            print(f"{options.target} {when} at {where} (Ctrl-C ends it)", file=sys.stderr, flush=True)

    config = validate(ServeConfig, {"host": options.host, "port": options.port}, "serve")
    if options.out and not (options.train or options.sessions):
        raise UsageError(
            f"--out {options.out} would stay empty: answers to clients are not recorded",
            code="option-without-effect",
            fix="leave it out; --sessions and --train record what they serve",
        )
    if options.train or options.sessions:
        work = serve.serve_training if options.train else serve.serve_sessions
        with progress(quiet=options.quiet) as listener:
            changes = shared.changes(LearningChanges, options)
            done = work(options.target, options.out, config=config, listener=listener, ready=ready, **changes)
        if options.train:
            show_done(done, as_json=False)
            return 0
        counts = Counter("lost" if one.error else "scored" for one in done.trajectories.open("sessions"))
        print(f"{counts.total()} sessions in {done.root}: {counts['scored']} scored, {counts['lost']} lost to errors")
        print(f"one of them: midstream show {done.root} ID")
        return 0
    serve.serve_agent(
        options.target,
        config=config,
        temperature=options.temperature,
        unsafe=options.unsafe,
        ready=ready,
        **shared.changes(AgentChanges, options),
    )
    return 0
