"""`midstream models`: list small models that run in process, fetch one, or merge a run's adapter into its model."""

from __future__ import annotations

import argparse
from pathlib import Path

from midstream.cli import options as shared
from midstream.engines.local.catalog import MODELS, fetch, find_fetched
from midstream.engines.local.settings import require_torch
from midstream.report.blocks import code, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `models`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    one = actions.add_parser("fetch", help="fetch a model from the Hugging Face Hub")
    one.add_argument("name", help="a short name that `midstream models` lists")
    merge = actions.add_parser("merge", help="write a LoRA adapter and its model as whole weights")
    merge.add_argument("run", help="a run directory, or the directory of an adapter")
    merge.add_argument("out", help="the new directory")
    shared.add(parser, *shared.OUTPUT)
    for action in (one, merge):
        shared.add(action, *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """List the models, fetch one, or merge an adapter."""
    if options.action is None:
        record = [{"name": name, "here": bool(find_fetched(name)), **model._asdict()} for name, model in MODELS.items()]
        rows = [
            (name, model.weights, f"{model.gb:g} GB", "yes" if find_fetched(name) else "no", model.license, model.use)
            for name, model in MODELS.items()
        ]
        heads = ("name", "weights", "size", "here", "license", "good for")
        hint = code("midstream models fetch NAME, then --model local/NAME")
        return shared.show(options, record, [table("", heads, rows, last=3), hint], MODELS)
    if options.action == "fetch":
        with shared.spinner(f"fetching {options.name}", silent=options.json or options.quiet):
            place, use = fetch(options.name), options.name
        if place.suffix == ".gguf":
            require_torch()
            # It imports torch, as below.
            from midstream.engines.local.gguf import convert

            place = convert(place)
    else:
        require_torch()
        from midstream.engines.local.pretrained import merge_adapter

        policy, place = Path(options.run) / "policy", Path(options.out)
        merge_adapter(policy if policy.is_dir() else Path(options.run), place)
        use = str(place)
    return shared.show(options, {"path": str(place)}, [code(f"{place}\nUse it: --model local/{use}")], [str(place)])
