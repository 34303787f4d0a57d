"""`midstream benchmarks`: list them; one in full, with its questions if they are at hand; a file of questions."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from midstream.cli import options as shared
from midstream.core.errors import UsageError
from midstream.core.tables import parse_component
from midstream.core.task import Task
from midstream.recipe.check import task_source
from midstream.report.turn_rows import fields, hints, plain
from midstream.rewards.composite import rule_for
from midstream.sources import benchmarks as known
from midstream.sources import file
from midstream.sources.benchmarks import Benchmark, find
from midstream.sources.finite import Finite

# Headings of the groups in sources/benchmarks.toml.
_HEADINGS = {"questions": "Questions", "mathematics": "Mathematics", "training": "To train on", "worlds": "Made here"}
_FAMILIES_SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `benchmarks`."""
    parser.add_argument("name", nargs="?", help="a benchmark")
    parser.add_argument(
        "--file", metavar="PATH", help="read its questions from here; without a name: your own questions"
    )
    shared.add(parser, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """List the benchmarks, show one, or read a file of questions."""
    record: Any
    if options.name is not None:
        benchmark = find(options.name)
        questions = _find_questions(benchmark, options.file)
        record, names = {**_record(benchmark), "here": questions}, [benchmark.name]
        screen = _in_full(benchmark, questions, options.file)
    elif options.file is not None:
        tasks = file.FileTasks(file.FileTasksConfig(path=Path(options.file))).tasks("test")
        record, names = _count(tasks, {"test": len(tasks)}, {}), [options.file]
        screen = _questions(record)
    else:
        record, names = [_record(benchmark) for benchmark in known.BENCHMARKS.values()], list(known.BENCHMARKS)
        screen = _list()
    return shared.show(options, record, names, lambda: screen)


def _record(benchmark: Benchmark) -> dict[str, Any]:
    """Everything of a benchmark that can be written as JSON."""
    record = benchmark.model_dump(mode="json", exclude={"group", "convert", "merge", "tasks"})
    return {**record, "address": benchmark.address}


def _find_questions(benchmark: Benchmark, path: str | None) -> dict[str, Any] | None:
    """The questions in a file, in what was downloaded before, or of a world, which makes them; None if not here."""
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
    return _count(tasks, {benchmark.main_split: len(tasks)}, left_out)


def _count(tasks: Sequence[Task], splits: Mapping[str, int], left_out: Mapping[str, int]) -> dict[str, Any]:
    return {
        "questions": dict(splits),
        "left_out": dict(left_out),
        "families": dict(Counter(task.family for task in tasks)),
        "rewards": dict(Counter(task.reward or rule_for(task) for task in tasks)),
        "first": tasks[0].model_dump(mode="json"),
    }


# --- screens ----------------------------------------------------------------------------------------------------------


def _list() -> Group:
    blocks: list[RenderableType] = []
    for group, heading in _HEADINGS.items():
        blocks.append(Text(heading, "bold"))
        for benchmark in known.BENCHMARKS.values():
            if benchmark.group != group:
                continue
            size = benchmark.sizes.get(benchmark.main_split)
            head = Text("  ").append(f"{benchmark.name:<14}", "cyan")
            head.append(f"{'-' if size is None else f'{size:,}':>8}  {benchmark.reward:<16}")
            blocks.append(head.append(benchmark.repository or "made here", "dim"))
            notes = [benchmark.asks]
            notes += [f"licence: {benchmark.licence}"] if benchmark.licence else []
            notes += ["access on request"] if benchmark.gated else []
            blocks.append(Padding(Text("; ".join(notes), "dim"), (0, 0, 0, 4)))
        blocks.append(Text())
    commands = {
        "midstream benchmarks gpqa": "one in full",
        "midstream benchmarks gpqa --file FILE": "with the questions in a file",
        "midstream benchmarks --file FILE": "check your own questions",
    }
    return Group(*blocks, hints(commands))


def _in_full(benchmark: Benchmark, questions: Mapping[str, Any] | None, path: str | None) -> Group:
    splits = []
    for ours, theirs in benchmark.splits.items():
        if ours in benchmark.sizes:
            splits.append(f"{ours} {benchmark.sizes[ours]:,}" + (f" (there: {theirs})" if theirs != ours else ""))
    configs = f" ({', '.join(benchmark.configs)})" if benchmark.configs != ("",) else ""
    copied = benchmark.copy_licence not in ("", benchmark.licence)
    in_file = f", file = {json.dumps(path)}" if path else ""
    facts = {
        "what": benchmark.asks,
        "splits": ", ".join(splits),
        "from": benchmark.address + configs or benchmark.repository or "made here",
        "fields": ", ".join(benchmark.columns),
        "scored by": benchmark.reward,
        "ends in": benchmark.instruction,
        "licence": benchmark.licence + (f" (of the copy: {benchmark.copy_licence})" if copied else ""),
        "republish": benchmark.republish if benchmark.repository else "",
        "papers": benchmark.paper,
        "notes": benchmark.notes,
        "unverified": benchmark.unverified,
        "evaluate": f"midstream eval RECIPE --benchmark {benchmark.name}" + (f"={shlex.quote(path)}" if path else ""),
        "recipe": f'tasks = {{ type = "benchmark", name = "{benchmark.name}"{in_file} }}',
        "access": "accept the conditions on its page, then: hf auth login" if benchmark.gated else "",
    }
    if questions is None:
        get = " The first evaluation downloads them;" if benchmark.repository else ""
        here: RenderableType = Text(f"Its questions are not here.{get} --file FILE reads a file of them.", "dim")
    else:
        here = _questions(questions)
    return Group(Text(benchmark.title, "bold"), _filled(facts), Text(), here)


def _questions(found: Mapping[str, Any]) -> Table:
    """How many there are, of which families, and the first."""
    first = found["first"]
    facts = {
        "questions": _listing(found["questions"]),
        "left out": _listing(found["left_out"]),
        "families": _listing(found["families"]) if len(found["families"]) > 1 else "",
        "scored by": ", ".join(found["rewards"]),
        "the first": first["question"],
        "its answer": " or ".join([first["answer"], *first["aliases"]]),
        "its id": first["id"],
    }
    return _filled(facts)


def _filled(facts: Mapping[str, str]) -> Table:
    return fields((name, plain(text)) for name, text in facts.items() if text)


def _listing(counts: Mapping[str, int]) -> str:
    most = sorted(counts.items(), key=lambda item: -item[1])
    more = [f"and {len(most) - _FAMILIES_SHOWN} more"] * (len(most) > _FAMILIES_SHOWN)
    return ", ".join([*(f"{name} {count:,}" for name, count in most[:_FAMILIES_SHOWN]), *more])
