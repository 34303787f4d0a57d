"""`midstream benchmarks`: which there are; one in full, with its questions if they are at hand; a file of your own."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from midstream.cli import options as shared
from midstream.core.component import parse_component
from midstream.core.errors import UsageError
from midstream.core.task import Task
from midstream.recipe.check import task_source
from midstream.report.timeline import Screen
from midstream.report.turn_rows import fields, plain
from midstream.tasks import benchmarks as known
from midstream.tasks import file
from midstream.tasks.benchmarks import Benchmark, find
from midstream.tasks.finite import Finite

# Headings of the groups in tasks/benchmarks.toml.
_HEADINGS = {
    "questions": "Questions",
    "mathematics": "Mathematics",
    "training": "To train on",
    "worlds": "Made here",
}
_FAMILIES_SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `benchmarks`."""
    parser.add_argument("name", nargs="?", help="a benchmark")
    parser.add_argument(
        "--file", metavar="PATH", help="read its questions from here; without a name: your own questions"
    )
    shared.add_output(parser)


def run(options: argparse.Namespace) -> int:
    """List the benchmarks, show one, or read a file of questions."""
    if options.name is None and options.file is None:
        _print([_told(one) for one in known.BENCHMARKS.values()], _list(), options, known.BENCHMARKS)
        return 0
    if options.name is None:
        found = _own(Path(options.file))
        _print(found, Group(*_questions(found)), options, [options.file])
        return 0
    benchmark = find(options.name)
    told = {**_told(benchmark), "here": _at_hand(benchmark, options.file)}
    _print(told, _in_full(benchmark, told["here"], options.file), options, [benchmark.name])
    return 0


def _told(benchmark: Benchmark) -> dict[str, Any]:
    """Everything of a benchmark that can be written as JSON."""
    names = ("name", "title", "use", "asks", "reward", "repository", "configs", "splits", "sizes", "columns")
    names = (*names, "licence", "copy_licence", "gated", "republish", "paper", "instruction", "notes", "unverified")
    return {name: getattr(benchmark, name) for name in names} | {"address": benchmark.address}


def _print(told: Any, screen: RenderableType, options: argparse.Namespace, names: Iterable[str]) -> None:
    if options.json:
        print(json.dumps(told, ensure_ascii=False))
    elif options.quiet:
        print("\n".join(names))
    else:
        Screen().print(screen)


# --- the list ---------------------------------------------------------------------------------------------------------


def _list() -> Group:
    blocks = [part for group in _HEADINGS for part in _section(group)]
    more = Table.grid(padding=(0, 4))
    more.add_column(no_wrap=True)
    more.add_row("  midstream benchmarks gpqa", "one in full")
    more.add_row("  midstream benchmarks gpqa --file FILE", "with the questions in a file")
    more.add_row("  midstream benchmarks --file FILE", "check questions of your own")
    return Group(*blocks, more)


def _section(group: str) -> Iterator[RenderableType]:
    yield Text(_HEADINGS[group], "bold")
    for one in known.BENCHMARKS.values():
        if one.group != group:
            continue
        size = one.sizes.get(one.main_split)
        head = Text("  ").append(f"{one.name:<15}", "cyan").append(f"{'-' if size is None else f'{size:,}':>8}  ")
        yield head.append(f"{one.reward:<17}").append(_where(one), "dim")
        licence = [f"licence: {one.licence}"] * bool(one.licence) + ["access on request"] * one.gated
        yield Padding(Text("; ".join([one.asks, *licence]), "dim"), (0, 0, 0, 4))
    yield Text()


def _where(one: Benchmark) -> str:
    return one.repository or "made here"


# --- one in full ------------------------------------------------------------------------------------------------------


def _in_a_recipe(one: Benchmark, path: str | None) -> str:
    file = f", file = {json.dumps(path)}" if path else ""
    return f'tasks = {{ type = "benchmark", name = "{one.name}"{file} }}'


def _in_full(one: Benchmark, here: Mapping[str, Any] | None, path: str | None) -> Group:
    rows = fields()
    rows.add_row("what", plain(one.asks))
    splits = [f"{ours} {one.sizes[ours]:,}{f' (there: {theirs})' * (theirs != ours)}" for ours, theirs in _splits(one)]
    for name, text in {
        "splits": ", ".join(splits),
        "from": one.address + (f" ({', '.join(one.configs)})" if one.configs != ("",) else "") or _where(one),
        "fields": ", ".join(one.columns),
        "scored by": one.reward,
        "ends in": one.instruction,
        "licence": one.licence + f" (of the copy: {one.copy_licence})" * (one.copy_licence not in ("", one.licence)),
        "republish": one.republish if one.repository else "",
        "papers": one.paper,
        "notes": one.notes,
        "unverified": one.unverified,
        "evaluate": f"midstream eval RECIPE --benchmark {one.name}{f'={shlex.quote(path)}' if path else ''}",
        "recipe": _in_a_recipe(one, path),
    }.items():
        if text:
            rows.add_row(name, plain(text))
    if one.gated:
        rows.add_row("access", plain("accept the conditions on its page, then: hf auth login"))
    parts: list[RenderableType] = [Text(one.title, "bold"), rows, Text()]
    if here is None:
        get = " The first evaluation downloads them;" if one.repository else ""
        nothing = f"Its questions are not here.{get} --file FILE reads a file of them."
        return Group(*parts, Text(nothing, "dim"))
    return Group(*parts, *_questions(here))


def _splits(one: Benchmark) -> Iterator[tuple[str, str]]:
    return ((ours, theirs) for ours, theirs in one.splits.items() if ours in one.sizes)


def _at_hand(benchmark: Benchmark, path: str | None) -> dict[str, Any] | None:
    """The questions in a file, or in what was downloaded before, or, of a world, that is made here."""
    if path is None:
        os.environ["HF_HUB_OFFLINE"] = "1"  # before its library is imported: to look at a benchmark downloads nothing
    if path is None and not benchmark.tasks and not known.is_downloaded(benchmark.repository):
        return None
    source = task_source(parse_component("tasks", {"type": "benchmark", "name": benchmark.name, "file": path}, "tasks"))
    try:
        tasks = source.fixed(benchmark.main_split, seed=0)
    except UsageError:
        if path is None:  # the repository holds several benchmarks, and this one was not downloaded
            return None
        raise
    left_out = source.left_out.get(benchmark.main_split, {}) if isinstance(source, Finite) else {}
    return _counts(tasks, {benchmark.main_split: len(tasks)}, left_out)


def _own(path: Path) -> dict[str, Any]:
    """The questions of a file of the user's own."""
    tasks = file.FileTasks(file.Config(path=path)).tasks("test")
    return _counts(tasks, {"test": len(tasks)}, {})


def _counts(tasks: Sequence[Task], splits: Mapping[str, int], left_out: Mapping[str, int]) -> dict[str, Any]:
    return {
        "questions": dict(splits),
        "left_out": dict(left_out),
        "families": dict(Counter(task.family for task in tasks)),
        "rewards": dict(Counter(task.reward or "exact_match" for task in tasks)),
        "first": tasks[0].model_dump(mode="json"),
    }


def _questions(here: Mapping[str, Any]) -> Iterator[RenderableType]:
    """How many there are, of which families, and the first."""
    rows = fields()
    rows.add_row("questions", plain(_listing(here["questions"], str(sum(here["questions"].values())))))
    if here["left_out"]:
        rows.add_row("left out", plain(_listing(here["left_out"], "")))
    if len(here["families"]) > 1:
        rows.add_row("families", plain(_listing(here["families"], "")))
    rows.add_row("scored by", plain(", ".join(here["rewards"])))
    first = here["first"]
    rows.add_row("the first", plain(first["question"]))
    rows.add_row("its answer", plain(" or ".join([first["answer"], *first["aliases"]])))
    rows.add_row("its id", plain(first["id"]))
    yield rows


def _listing(counts: Mapping[str, int], otherwise: str) -> str:
    most = sorted(counts.items(), key=lambda item: -item[1])
    more = [f"and {len(most) - _FAMILIES_SHOWN} more"] * (len(most) > _FAMILIES_SHOWN)
    return ", ".join([*(f"{name} {count:,}" for name, count in most[:_FAMILIES_SHOWN]), *more]) or otherwise
