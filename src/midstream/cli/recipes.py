"""`midstream recipes`: those that come with midstream, by what they learn; with a name, its whole text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from midstream.cli import options as shared
from midstream.core.component import EngineConfig
from midstream.core.kinds import config_class
from midstream.recipe.schema import find_recipe, read_table, shipped_recipes

_HEADINGS = {
    "nothing": 'Run an agent: midstream solve "..." --recipe NAME, midstream eval NAME',
    "lessons": "Learn lessons for a frozen model: midstream train NAME",
    "weights": "Train weights: midstream train NAME",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `recipes`."""
    parser.add_argument("name", nargs="?", help="a recipe, by name or file")
    shared.add(parser, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """List the recipes, or print one."""
    if options.name is not None:
        record = _record(options.name)
        text = Path(record["path"]).read_text(encoding="utf-8")
        if options.json:
            print(json.dumps({**record, "text": text}))
        elif options.quiet:
            print(record["name"])
        else:
            print(f"# {record['name']}: learns {record['learns']}; {_about(record)}\n{text}", end="")
        return 0
    records = [_record(name) for name in shipped_recipes()]
    return shared.show(options, records, [record["name"] for record in records], lambda: _list(records))


def _record(name: str) -> dict[str, Any]:
    """What a recipe is for, read from its own tables with those that it extends; they are not validated."""
    table = read_table(name)
    needs: set[str] = set()
    for settings in table.get("engines", {}).values():
        config = config_class("engine", settings["type"])
        if settings.get("device", "cpu") != "cpu":
            needs.add("a GPU")
        elif issubclass(config, EngineConfig) and config.in_process:
            needs.add("PyTorch")
        elif settings["type"] == "openai_compatible":
            needs.add("a model server")
    return {
        "name": table.get("name", name),
        "description": table.get("description", ""),
        "learns": "lessons" if "practice" in table else "weights" if "training" in table else "nothing",
        "agent": table["agent"].get("type", "agentflow"),
        "needs": [need for need in ("PyTorch", "a model server", "a GPU") if need in needs],
        "path": str(find_recipe(name)),
    }


def _about(record: dict[str, Any]) -> str:
    return f"agent {record['agent']}; needs {', '.join(record['needs']) or 'nothing'}"


def _list(records: list[dict[str, Any]]) -> Group:
    parts: list[RenderableType] = []
    for learns, heading in _HEADINGS.items():
        rows = Table(box=None, pad_edge=False, show_header=False)
        of_kind = (record for record in records if record["learns"] == learns)
        for record in sorted(of_kind, key=lambda record: record["needs"]):
            about = Text(record["description"]).append(f"\n{_about(record)}", "dim")
            rows.add_row(Text(record["name"], "cyan"), about)
        parts += [Text(heading, "bold"), Padding(rows, (0, 0, 1, 2))]
    return Group(*parts, Text("midstream recipes NAME prints one, with the reason of each value"))
