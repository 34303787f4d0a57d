"""`midstream simulator RUN ... --recipe RECIPE --out FILE.jsonl`: what a simulated search engine is trained on."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from midstream.cli import options as shared
from midstream.components.component import Component
from midstream.core.errors import UsageError
from midstream.process import event_loop
from midstream.recipe.build import Build
from midstream.recipe.check import no_engine
from midstream.recipe.overrides import changed_recipe
from midstream.recipe.schema import Recipe
from midstream.report.numbers import counted
from midstream.runs import RunDirectory
from midstream_extra.simulated import SimulatedConfig
from midstream_extra.transcripts import Label, UsefulJudge, by_rule, write_transcripts

HELP = "write what a simulated search engine is trained on"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `simulator`."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories with searches of the real tool")
    parser.add_argument("--recipe", required=True, help="the recipe with [wrappers.TOOL.simulated]")
    parser.add_argument("--out", required=True, metavar="FILE.jsonl", help="the transcripts, for warm_start.file")
    parser.add_argument(
        "--tool", metavar="NAME", help="the table of whose searches (default: the recipe's one simulated tool)"
    )
    parser.add_argument("--part", default="", metavar="GLOB", help="parts (default: step-*; of evaluations all)")
    parser.add_argument("--judge", metavar="ENGINE", help="an engine of the recipe that judges (default: a rule)")
    shared.add(parser, "--set", "--trust", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Write the transcripts; print how many are useful, how many noisy, and what was left out."""
    recipe, out = changed_recipe(options.recipe, overrides=options.overrides), Path(options.out)
    simulated = {
        name: wrapper.config
        for name, wrappers in recipe.wrappers.items()
        for wrapper in wrappers.values()
        if isinstance(wrapper.config, SimulatedConfig)
    }
    table = options.tool or _only(simulated, recipe)
    if (config := simulated.get(table)) is None or table not in recipe.tools:
        raise UsageError(
            f"recipe {recipe.name!r} has no [wrappers.{table}.simulated], or no [tools.{table}]",
            code="unknown-tool",
            fix=f"name one of: {', '.join(simulated) or 'none'}; or a recipe that simulates the tool",
        )
    tool = _called(table, recipe.tools[table])
    runs = [RunDirectory.open(Path(run)) for run in options.runs]

    async def work(label: Label) -> Any:
        return await write_transcripts(runs, out, tool=tool, config=config, label=label, parts=options.part)

    if options.judge not in (None, *recipe.engines):
        raise no_engine(recipe, f"--judge {options.judge}", options.judge)
    with shared.spinner("writing", silent=options.quiet):
        if options.judge is None:
            done, kinds = asyncio.run(work(by_rule))
        else:
            with event_loop(build := Build(recipe)) as run_coroutine:
                engine = build.engine(options.judge, continuous=True)
                model = recipe.engines[options.judge].table()
                judge = UsefulJudge(engine, model=model, cache=Path(f"{out}.verdicts"))
                try:
                    done, kinds = run_coroutine(work(judge.label))
                finally:
                    run_coroutine(judge.close())
    each = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items(), reverse=True))
    line = f"{counted(done.rows, 'search', 'searches')} in {done.path}: {each}"
    record = {"path": str(done.path), "rows": done.rows, **kinds, "left_out": done.left_out}
    return shared.show(options, record, shared.written(line, done.left_out))


def _called(table: str, component: Component) -> str:
    """What agents, and so trajectories, call the tool of a table: a function of your own has the table's name."""
    return component.alias or getattr(getattr(component.config, "component", None), "name", table)


def _only(simulated: Mapping[str, SimulatedConfig], recipe: Recipe) -> str:
    if len(simulated) != 1:
        raise UsageError(
            f"recipe {recipe.name!r} simulates {', '.join(simulated) or 'no tool'}",
            code="missing-option",
            fix="add --tool NAME"
            if simulated
            else "name a recipe with [wrappers.TOOL.simulated], such as zerosearch-tiny",
        )
    return next(iter(simulated))
