"""`midstream list`: the kinds of things that a name can mean, those of one kind, one in full.

It makes, downloads and asks nothing, so it works without keys, network and extras.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from midstream.cli import options as shared
from midstream.components.component import ComponentConfig, EngineConfig
from midstream.core.errors import MidstreamError, UsageError
from midstream.recipe.files import find_recipe, read_table, shipped_recipes
from midstream.report import blocks
from midstream.report.blocks import Block

if TYPE_CHECKING:
    from midstream.components.component import Kind
    from midstream.sources.benchmarks import Benchmark

# Components, tasks and benchmarks are imported where a kind needs them: each takes a quarter of a second.

KINDS = {
    "recipes": "an agent, and how it learns",
    "benchmarks": "questions to evaluate on, and to train on",
    "tools": "what agents can call",
    "tasks": "where questions come from",
    "reward": "what scores an answer",
    "engine": "what samples from a model",
    "agent": "how a question is worked on",
    "planner": "chooses the next action of agentflow",
    "executor": "writes the arguments of the tool's call",
    "verifier": "decides whether agentflow continues",
    "generator": "writes agentflow's answer",
    "analyst": "analyzes the question for agentflow, once",
    "policy": "writes the turns of an interleaved agent",
    "advantage": "from the rewards of a group to advantages",
    "loss": "what an update of the weights minimizes",
    "learner": "what trains",
    "branching": "which trajectories of a group continue others, and from where",
    "asynchrony": "how far rollouts run ahead of training",
    "strategy": "several runs of an agent that make one answer",
    "wrapper": "changes a tool while an agent trains",
    "proposer": "suggests changes of what an agent reads",
}
_HEADINGS = {
    "nothing": 'Run an agent: midstream solve "..." --recipe NAME, midstream eval NAME',
    "lessons": "Learn lessons for a frozen model: midstream train NAME",
    "weights": "Train weights: midstream train NAME",
    "questions": "Questions",
    "mathematics": "Mathematics",
    "training": "To train on",
    "worlds": "Made here",
    "": "",
}
_COUNTS_SHOWN = 8


class Entry(NamedTuple):
    """What a name means: `record` is all of it, as JSON or on its own screen, `about` and `group` are for a list."""

    name: str
    what: str
    record: Block
    about: str = ""
    group: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `list`."""
    parser.add_argument("kind", nargs="?", choices=tuple(KINDS), metavar="KIND", help=f"one of: {', '.join(KINDS)}")
    parser.add_argument("item", nargs="?", metavar="NAME", help="one of them, or your own: my_rewards.py:exact")
    parser.add_argument("--file", metavar="PATH", help="the questions of a benchmark")
    shared.add(parser, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """List the kinds or those of one kind, or show one entry."""
    kind, name = options.kind, options.item
    one = name is not None
    if options.file is not None and not (kind == "benchmarks" and one):
        fix = "name it; your own questions are checked by: midstream eval direct --tasks FILE --dry-run"
        raise UsageError("--file without a benchmark", code="option-without-effect", fix=fix)
    entries: list[Entry] = []
    for each in [name] if one else _names(kind) if kind else ():
        try:
            if kind == "benchmarks":
                entries.append(_benchmark(each, options.file, full=one))
            elif kind == "recipes":
                entries.append(_recipe(each, full=one))
            else:
                entries.append(_component(_component_kind(kind), each))
        except MidstreamError as error:
            if one:
                raise
            # It stays in the list, which says why it cannot be used here.
            entries.append(Entry(each, f"unusable: {error.what}", {}))
    if kind is None:
        counts = {each: len(_names(each)) for each in KINDS}
        entries = [Entry(each, f"{KINDS[each]} ({count:,})", {"count": count}) for each, count in counts.items()]
    entries.sort(key=lambda entry: [*_HEADINGS].index(entry.group))
    if one and "text" in entries[0].record and not options.json and not options.quiet:
        # A terminal would break its lines.
        print(entries[0].record["text"], end="")
        return 0
    records = [{"name": entry.name, "what": entry.what, **entry.record} for entry in entries]
    shown = _in_full(entries[0]) if one else _by_group(kind, entries)
    return shared.show(options, records, shown, [entry.name for entry in entries])


def _names(kind: str) -> Sequence[str]:
    if kind == "recipes":
        return list(shipped_recipes())
    from midstream.components.kinds import registered
    from midstream.sources.benchmarks import BENCHMARKS

    return list(BENCHMARKS) if kind == "benchmarks" else registered(_component_kind(kind))


def _component_kind(kind: str) -> Kind:
    return cast("Kind", "tool" if kind == "tools" else kind)


# --- screens ----------------------------------------------------------------------------------------------------------


def _by_group(kind: str | None, entries: Sequence[Entry]) -> list[Block | None]:
    """The entries by group, then commands that show more."""
    found: list[Block | None] = [] if entries else [blocks.text("none but your own", "soft")]
    for group in dict.fromkeys(entry.group for entry in entries):
        found += [blocks.heading(_HEADINGS[group])] if group else []
        found.append(blocks.cards([blocks.card(e.name, e.what, [e.about]) for e in entries if e.group == group]))
    return [*found, blocks.code(f"midstream list {kind or 'KIND'} NAME    one in full, or your own: FILE.py:NAME")]


def _in_full(entry: Entry) -> list[Block | None]:
    record = dict(entry.record)
    rows = []
    for setting in record.pop("settings", ()):
        default = "required" if setting["required"] else json.dumps(setting.get("default"), ensure_ascii=False)
        rows.append((setting["name"], default, setting["meaning"]))
    return [
        blocks.text(entry.name, "strong"),
        blocks.text(entry.what),
        blocks.facts({key.replace("_", " "): _shown(value) for key, value in record.items()}),
        blocks.table("", ("setting", "default", "meaning"), rows, left=3),
    ]


def _shown(value: object) -> str:
    """A value of a record as text, "" if it says nothing; of many counts the largest."""
    if isinstance(value, Mapping) and all(isinstance(count, int) for count in value.values()):
        counts = Counter(value).most_common()
        more = [f"and {len(counts) - _COUNTS_SHOWN:,} more"] * (len(counts) > _COUNTS_SHOWN)
        return ", ".join([*(f"{name} {count:,}" for name, count in counts[:_COUNTS_SHOWN]), *more])
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {text}" for name, each in value.items() if (text := _shown(each)))
    if isinstance(value, list):
        return ", ".join(filter(None, map(_shown, value)))
    return "" if value is None else str(value)


# --- recipes ----------------------------------------------------------------------------------------------------------


def _recipe(name: str, *, full: bool) -> Entry:
    """A recipe by its own tables with those that it extends; they are not validated."""
    from midstream.components.kinds import config_class

    table, path = read_table(name), find_recipe(name)
    found: set[str] = set()
    for settings in table.get("engines", {}).values():
        config = config_class("engine", settings["type"])
        if settings.get("device", "cpu") != "cpu":
            found.add("a GPU")
        elif issubclass(config, EngineConfig) and config.in_process:
            found.add("PyTorch")
        elif settings["type"] == "openai_compatible":
            found.add("a model server")
    needs = [need for need in ("PyTorch", "a model server", "a GPU") if need in found]
    learns = "lessons" if "lessons" in table else "weights" if "training" in table else "nothing"
    name, agent = table.get("name", name), table["agent"].get("type", "agentflow")
    about = f"agent {agent}; needs {', '.join(needs) or 'nothing'}"
    record = {"learns": learns, "agent": agent, "needs": needs, "path": str(path)}
    if full:
        record["text"] = f"# {name}: learns {learns}; {about}\n{path.read_text(encoding='utf-8')}"
    return Entry(name, table.get("description", ""), record, about, learns)


# --- components -------------------------------------------------------------------------------------------------------


def _component(kind: Kind, name: str) -> Entry:
    from midstream.components.kinds import config_class, installed
    from midstream.components.own import anchored, file_of, is_reference
    from midstream.components.tables import located
    from midstream.tools.function import parse_docstring

    located(kind, name, kind)
    config = config_class(kind, anchored(name, Path.cwd()))
    source = "midstream"
    if points := installed(kind).get(name):
        package = points[0].dist
        source = f"{package.name} {package.version}" if package else "a package"
    elif is_reference(name):
        path = file_of(name)
        source = f"file {path}" if path is not None else f"module {name.rpartition(':')[0]}"
    needs, may_use = _needs(config)
    documented: dict[str, str] = {}
    for cls in reversed(config.__mro__):
        documented |= parse_docstring(inspect.getdoc(cls) or "")[1]
    settings: list[Block] = []
    for setting, info in config.model_fields.items():
        settings.append({"name": setting, "required": info.is_required(), "meaning": documented.get(setting, "")})
        # A default that takes validated data depends on other settings.
        if not info.is_required() and not info.default_factory_takes_validated_data:
            default = info.get_default(call_default_factory=True)
            settings[-1]["default"] = to_jsonable_python(default, fallback=repr)
    record = {"from": source, "needs": needs, "may_use": may_use, "settings": settings}
    if kind == "tool" and "settings" not in needs:
        record["arguments"] = f"midstream call {name} shows them"
    required = [what + " (missing)" * state.startswith("missing") for what, state in needs.items()]
    about = "; ".join([source] * (source != "midstream") + [f"needs {', '.join(required)}"] * bool(required))
    # The first sentence of the docstring, which is that of a function or class of your own.
    text = " ".join((inspect.getdoc(config) or "").partition("\n\n")[0].split())
    return Entry(name, re.split(r"(?<=[.])\s", text, maxsplit=1)[0], record, about)


def _needs(config: type[BaseModel]) -> tuple[dict[str, str], dict[str, str]]:
    """What a component needs and what it may use, with whether that is here, as far as the class of settings says."""
    needs: dict[str, str] = {}
    may_use: dict[str, str] = {}
    # The settings of an agent as a whole are no component's.
    component = config if issubclass(config, ComponentConfig) else ComponentConfig
    if component.extra:
        there = [find_spec(package) is not None for package in component.packages]
        fix = f"pip install 'midstream[{component.extra}]'"
        needs[f"extra {component.extra}"] = fix if not there else "installed" if all(there) else f"missing: {fix}"
    if component.asks != "never":
        (needs if component.asks == "always" else may_use)["a model"] = 'engine = "NAME" in its table'
    if component.sandboxed:
        needs["a sandbox"] = "midstream doctor tries it"
    try:
        config()
    except ValidationError as error:
        # Required settings by name, and what else a table without settings lacks.
        lacks = [
            ".".join(map(str, each["loc"])) or each["msg"].removeprefix("Value error, ") for each in error.errors()
        ]
        needs["settings"] = ", ".join(lacks)
    key = config.model_fields["api_key_env"].default if "api_key_env" in config.model_fields else None
    if isinstance(key, str) and key:
        may_use[f"key {key}"] = "set" if os.environ.get(key, "").strip() else f"not set: export {key}=<your key>"
    return needs, may_use


# --- benchmarks -------------------------------------------------------------------------------------------------------


def _benchmark(name: str, path: str | None, *, full: bool) -> Entry:
    """A benchmark; in full with its questions if they are in the file `path`, or here."""
    from midstream.sources.benchmarks import find

    benchmark = find(name)
    size = benchmark.sizes.get(benchmark.main_split)
    notes = [] if size is None else [f"{size:,} questions"]
    notes += [f"scored by {benchmark.reward}"] + [f"licence {benchmark.licence}"] * bool(benchmark.licence)
    about = "; ".join(notes + ["access on request"] * benchmark.gated)
    left_out = {"name", "group", "asks", "repository", "convert", "merge", "tasks", "gated"}
    record = {"address": benchmark.address or "made here", **benchmark.model_dump(mode="json", exclude=left_out)}
    if full:
        in_file = f", file = {json.dumps(path)}" if path else ""
        access = "accept the conditions on its page, then: hf auth login; " * benchmark.gated
        loads = "the first evaluation downloads the questions; " * bool(benchmark.repository)
        record["evaluate"] = f"midstream eval RECIPE --benchmark {name}" + (f"={shlex.quote(path)}" if path else "")
        record["recipe"] = f'tasks = {{ type = "benchmark", name = "{name}"{in_file} }}'
        record |= _questions(benchmark, path) or {"not_here": f"{access}{loads}--file FILE reads a file of them"}
    return Entry(name, benchmark.asks, record, about, benchmark.group)


def _questions(benchmark: Benchmark, path: str | None) -> Block:
    """How many questions there are, of which families, what scores them, and the first; {} if they are not here.

    They are in a file, in what was downloaded before, or of a world, which makes them.
    """
    from midstream.components.tables import parse_component
    from midstream.recipe.check import task_source
    from midstream.rewards.composite import rule_for
    from midstream.sources.benchmarks import is_downloaded
    from midstream.sources.finite import Finite

    if path is None:
        # Set before its library is imported: to look at a benchmark downloads nothing.
        os.environ["HF_HUB_OFFLINE"] = "1"
    if path is None and not benchmark.tasks and not is_downloaded(benchmark.repository):
        return {}
    source = task_source(parse_component("tasks", {"type": "benchmark", "name": benchmark.name, "file": path}, "tasks"))
    try:
        tasks = source.fixed(benchmark.main_split, seed=0)
    except UsageError:
        if path is None:
            # The repository holds several benchmarks, and this one was not downloaded.
            return {}
        raise
    left_out = source.left_out.get(benchmark.main_split, {}) if isinstance(source, Finite) else {}
    return {
        "questions": {benchmark.main_split: len(tasks)},
        "left_out": dict(left_out),
        "families": dict(Counter(task.family for task in tasks)),
        "rewards": dict(Counter(task.reward or rule_for(task) for task in tasks)),
        "first": tasks[0].model_dump(mode="json"),
    }
