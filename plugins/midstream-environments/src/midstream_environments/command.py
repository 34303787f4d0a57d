"""`midstream environments export RECIPE`: a world in the formats of others; and `list`: the libraries."""

from __future__ import annotations

import argparse
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from midstream.cli import options as shared
from midstream.components.kinds import config_class, registered
from midstream.core.errors import MidstreamError
from midstream.recipe.overrides import LearningChanges, changed_recipe
from midstream.report.blocks import code, table, text
from midstream.report.numbers import counted
from midstream.sources.finite import SPLITS
from midstream_environments.export import FORMS, export
from midstream_environments.library import LibraryConfig

HELP = "export a recipe's tasks, tools and reward to verifiers, OpenEnv or JSON lines; list the libraries"

_NEXT = {
    "verifiers": "pip install {out}, then: vf-eval {name}",
    "openenv": "pip install {out}, then: uvicorn {module}.server.app:app",
    "jsonl": 'tasks = {{ type = "file", path = "{out}/tasks.jsonl" }}',
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `environments`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="export|list")
    out = actions.add_parser("export", help="write a recipe's tasks, tools and reward in the format of others")
    out.add_argument("recipe", help="recipe: a name or a .toml file")
    out.add_argument("--format", required=True, choices=FORMS, help="for which project, or rows of tasks alone")
    out.add_argument("--out", required=True, type=Path, metavar="DIR", help="a new folder; its name is the package's")
    out.add_argument("--split", choices=SPLITS, help="only this split (default: all)")
    out.add_argument("--count", type=shared.parse_count, metavar="N", help="tasks of each split, drawn at random")
    shared.add(out, "--tasks", "--reward", "--set", "--trust", *shared.OUTPUT)
    shared.add(actions.add_parser("list", help="the libraries, and the versions that were tested"), *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Export, or list."""
    return _list(options) if options.action == "list" else _export(options)


def _export(options: argparse.Namespace) -> int:
    recipe = changed_recipe(options.recipe, **shared.changes(LearningChanges, options))
    found = export(recipe, form=options.format, out=options.out, split=options.split, count=options.count)
    name = found.path.resolve().name
    record = {"path": str(found.path), "format": found.form, "tasks": dict(found.tasks), "tools": [*found.tools]}
    splits = ", ".join(f"{number:,} {split}" for split, number in found.tasks.items())
    tools = f", {counted(len(found.tools), 'tool')}: {', '.join(found.tools)}" if found.tools else ""
    use = _NEXT[found.form].format(out=found.path, name=name.replace("_", "-"), module=name.replace("-", "_"))
    return shared.show(options, record, [text(f"{found.path}: {splits}{tools}"), code(use)], [str(found.path)])


def _list(options: argparse.Namespace) -> int:
    rows = []
    for name in registered("tasks"):
        try:
            config = config_class("tasks", name)
        except MidstreamError:
            # Of another package, which is half installed.
            continue
        if issubclass(config, LibraryConfig):
            rows.append((name, config.library, _version(config), ", ".join(config.tested)))
    record = [dict(zip(("type", "library", "installed", "tested"), row, strict=True)) for row in rows]
    head = ("tasks.type", "library", "installed here", "tested")
    return shared.show(options, record, [table("", head, rows, left=4)], [row[0] for row in rows])


def _version(config: type[LibraryConfig]) -> str:
    """The version of a library that this interpreter has, "" without it."""
    # An adapter is not imported here: it imports the library.
    adapter = Path(__file__).parent / "adapters" / f"{config.adapter}.py"
    name = re.search(r'^DISTRIBUTION = "(.+)"', adapter.read_text(encoding="utf-8"), re.MULTILINE)
    try:
        return version(name[1] if name else config.library)
    except PackageNotFoundError:
        return ""
