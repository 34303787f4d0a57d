"""`midstream components`: what a recipe can name by `type`, kind by kind; one in full, with its settings."""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from midstream.cli import options as shared
from midstream.core.errors import MidstreamError, UsageError, did_you_mean
from midstream.core.kinds import KINDS, config_class, installed, package_of, registered
from midstream.core.own import anchored, file_of, is_reference
from midstream.core.tables import located
from midstream.recipe import registry as registry  # registers the components that come with midstream
from midstream.report.turn_rows import hints
from midstream.tools.function import parse_docstring

Record = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `components`."""
    parser.add_argument("kind", nargs="?", help=f"one of: {', '.join(KINDS)}")
    parser.add_argument("name", nargs="?", help="one of them, or your own: my_rewards.py:exact")
    shared.add(parser, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """List the components, or show one."""
    kind: Any = options.kind
    if kind not in (None, *KINDS):
        fix = f"{did_you_mean(kind, KINDS)}one of: {', '.join(KINDS)}"
        raise UsageError(f"there is no kind {kind!r}", code="unknown-name", fix=fix)
    if options.name is not None:
        located(options.kind, options.name, str(kind))
        records = [_record(kind, options.name)]
    else:
        kinds: Sequence[Any] = [kind] if kind else KINDS
        records = [_listed(kind, name) for kind in kinds for name in registered(kind)]
    names = [f"{record['kind']}.{record['name']}" for record in records]
    one = options.name is not None
    return shared.show(options, records, names, lambda: _in_full(records[0]) if one else _list(kind, records))


def _listed(kind: Any, name: str) -> Record:
    """A component's record; one that cannot be used here says why in place of what it is."""
    try:
        return _record(kind, name)
    except MidstreamError as error:
        return {"kind": kind, "name": name, "from": _source(kind, name), "what": f"unusable: {error.what}"}


def _record(kind: Any, name: str) -> Record:
    config: Any = config_class(kind, anchored(name, Path.cwd()))
    documented = {
        field: text
        for cls in reversed(config.__mro__)
        for field, text in parse_docstring(inspect.getdoc(cls) or "")[1].items()
    }
    settings = []
    for field, info in getattr(config, "model_fields", {}).items():
        setting: Record = {"name": field, "required": info.is_required(), "meaning": documented.get(field, "")}
        if not info.is_required() and not info.default_factory_takes_validated_data:  # that depends on other settings
            setting["default"] = to_jsonable_python(info.get_default(call_default_factory=True), fallback=repr)
        settings.append(setting)
    return {"kind": kind, "name": name, "from": _source(kind, name), "what": what_is(config), "settings": settings}


def _source(kind: Any, name: str) -> str:
    """Where a component comes from: midstream, a package and its version, a file or a module."""
    if name in installed(kind):
        return ", ".join(map(package_of, installed(kind)[name]))
    if not is_reference(name):
        return "midstream"
    file = file_of(name)
    return f"file {file}" if file is not None else f"module {name.rpartition(':')[0]}"


def what_is(config: Any) -> str:
    """The first sentence of the docstring of a component's settings; of your own, of its function or class."""
    text = " ".join((inspect.getdoc(config) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.])\s", text, maxsplit=1)[0]


# --- screens ----------------------------------------------------------------------------------------------------------


def _list(kind: str | None, records: list[Record]) -> Group:
    blocks: list[RenderableType] = []
    for heading in [kind] if kind else KINDS:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column()
        for record in records:
            if record["kind"] == heading:
                name = Text("  ").append(record["name"], "cyan")
                table.add_row(name, Text(record["from"], "dim"), Text(record["what"]))
        blocks += [Text(str(heading), "bold"), table, Text()]
        if not table.row_count:
            blocks[-2] = Text("  none but your own", "dim")
    commands = {
        "midstream components reward numeric": "one with its settings",
        "midstream components reward my_rewards.py:exact": "your own: docs/extending.md",
    }
    return Group(*blocks, hints(commands))


def _in_full(record: Record) -> Group:
    table = Table(box=None, padding=(0, 2))
    for heading in ("setting", "default", "meaning"):
        table.add_column(heading)
    for setting in record["settings"]:
        default = "required" if setting["required"] else json.dumps(setting.get("default"), ensure_ascii=False)
        table.add_row(Text(setting["name"], "cyan"), Text(default), Text(setting["meaning"]))
    head = Text(f"{record['kind']} ", "bold").append(record["name"], "bold cyan").append(f"  {record['from']}", "dim")
    rest: RenderableType = table if record["settings"] else Text("It has no settings.", "dim")
    return Group(head, Text(record["what"]), Text(), rest)
