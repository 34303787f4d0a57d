"""`midstream plan RECIPE --gpus 8xH100`: does its training fit this hardware, and with which settings?"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from midstream.cli import options as shared
from midstream.recipe.memory import GIB
from midstream.recipe.overrides import LearningChanges, changed_recipe
from midstream.report.blocks import Block, table, text
from midstream_extra.ways import CARDS, Way, gpus_of, job_of, ways

HELP = "whether a training fits these GPUs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plan`."""
    parser.add_argument("recipe", help="name of a recipe that trains weights, or a .toml file")
    parser.add_argument(
        "--gpus", required=True, metavar="NxNAME", help="e.g. 8xH100, 1xRTX4090; a wrong name lists them"
    )
    shared.add(parser, "--set", "--trust", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Print the plan."""
    recipe = changed_recipe(options.recipe, **shared.changes(LearningChanges, options))
    count, card = gpus_of(options.gpus)
    found = ways(job_of(recipe), CARDS[card], count)
    record = {"recipe": recipe.name, "gpu": card, "gpu_gb": CARDS[card], "ways": [asdict(way) for way in found]}

    title = f"{recipe.name} on {count} x {card} ({CARDS[card]} GB), by formula: nothing was run"
    parts = [text(title, "strong"), *(part for way in found for part in _way(way, CARDS[card], count))]
    return shared.show(options, record, parts, [way.kind for way in found if way.fits])


def _way(way: Way, card_gb: int, gpus: int) -> list[Block | None]:
    """Whether a way fits, the settings with which it does, and what a device holds."""
    name = {"one device": "one device", "torchrun": f"--nproc {gpus}", "verl": "--learner verl"}[way.kind]
    changed = "".join(f" --set {key}={value}" for key, value in way.settings.items())
    host = f", {way.host / GIB:.1f} GB of host memory" if way.host else ""
    fits = "fits" if way.fits else "does not fit"
    head = f"{name}{changed}: {fits}, {way.bytes / GIB:.1f} of {card_gb} GB{host}"
    rows = []
    for part in way.parts:
        moment = "in host memory: " if part.host else "" if part.moment == "always" else f"{part.moment}: "
        rows.append((part.name, f"{part.bytes / GIB:.1f}", moment + part.formula))
    return [text(head, "up" if way.fits else "down"), table("", ("part", "GB", "formula"), rows, last=1)]
