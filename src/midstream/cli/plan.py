"""`midstream plan RECIPE --gpus 8xH100`: what fits this hardware, how long a step takes, what breaks first."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from midstream.cli import options as shared
from midstream.core.errors import UsageError
from midstream.recipe.cards import Card, card_of
from midstream.recipe.load import load_like, load_of
from midstream.recipe.memory import GIB, PROMPT_TOKENS
from midstream.recipe.overrides import LearningChanges, changed_recipe
from midstream.recipe.plan import DEFAULT, Assumed, Job, Way, job_of, ways
from midstream.runs import RunDirectory

Side = Literal["left", "right"]
_TIGHT = 0.95  # of a device; an estimate may err by more than what is left
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plan`."""
    parser.add_argument("recipe", help="name of a recipe that trains weights, or a .toml file")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--gpus", metavar="NxNAME", help="e.g. 8xH100, 1xRTX4090; a wrong name lists them")
    where.add_argument("--cpu", action="store_true", help="this machine: its speed is measured, in a few seconds")
    parser.add_argument(
        "--nodes", type=shared.parse_count, metavar="N", help="nodes with these GPUs each (default: of 8)"
    )
    parser.add_argument("--sweep", metavar="N,N", help="one line for each of these numbers of GPUs, trained by verl")
    parser.add_argument("--price", type=shared.parse_amount, metavar="DOLLARS", help="of a GPU hour")
    parser.add_argument(
        "--like", type=Path, metavar="RUN", help="the tokens of this run's steps, in place of assumed ones"
    )
    for name, text in {
        "--turns": "mean replies of a trajectory (default: the most that it may take)",
        "--prompt-tokens": f"of the first prompt (default: {PROMPT_TOKENS:,})",
        "--completion-tokens": "mean new tokens of a reply (default: a quarter of the most)",
        "--observed-tokens": "that a turn adds to the next prompt (default: 300)",
    }.items():
        parser.add_argument(name, type=shared.parse_count, metavar="N", help=text)
    parser.add_argument(
        "--turn-seconds",
        type=shared.parse_amount,
        default=0.0,
        metavar="S",
        help="of tools and other modules (default: not counted)",
    )
    shared.add(parser, "--set", *shared.OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Print the plan."""
    _refuse_without_effect(options)
    recipe = changed_recipe(options.recipe, **shared.changes(LearningChanges, options))
    if options.like:
        load = load_like(recipe, list(RunDirectory.open(options.like).metrics.read()))
    else:
        given = {"turns": options.turns, "completion": options.completion_tokens}
        given |= {"prompt": options.prompt_tokens, "observed": options.observed_tokens}
        load = load_of(recipe, **{name: value for name, value in given.items() if value is not None})
    job = job_of(recipe, load, turn_s=options.turn_seconds)
    assumed, count, per_node = DEFAULT, 1, 1
    if options.cpu:
        name, card, assumed = "this machine", *this_machine(job)
    else:
        count, name, card = card_of(options.gpus)
        per_node = min(count, 8) if options.nodes is None else count
        count *= options.nodes or 1
    sizes = _sizes(options.sweep) if options.sweep else []
    found = [(size, way) for size in sizes for way in ways(job, card, size, 8, assumed) if way.kind == "verl"]
    if not sizes:
        every = ways(job, card, count, per_node, assumed)
        every = every[:1] if options.cpu else every  # a processor is one device
        found = [(1 if way.kind == "one device" else count, way) for way in every]
    record = {
        "recipe": recipe.name, "card": {"name": name, **card.model_dump()}, "load": asdict(job.load),
        "assumed": asdict(assumed), "ways": [_record(job, way, size, options.price) for size, way in found],
    }  # fmt: skip
    steps = recipe.training.steps if recipe.training else 0
    head = f"{recipe.name} on {name if options.cpu or sizes else f'{count} x {name}'}, by formula: nothing was run"

    def screen() -> RenderableType:
        body = _sweep(job, found, options.price) if sizes else _table(found, card, steps, options.price)
        detail = [] if sizes else [each for size, way in found for each in _formulas(way, size, -(-size // per_node))]
        return Group(Text(head, "bold"), _tokens(job), body, *detail, *_assumptions(card, name, assumed))

    return shared.show(options, record, [way.kind for _, way in found if way.fits], screen)


def _refuse_without_effect(options: argparse.Namespace) -> None:
    """Raise `UsageError` for options of which one replaces the other."""
    for one, other in (
        *(("like", name) for name in ("turns", "prompt_tokens", "completion_tokens", "observed_tokens")),
        ("cpu", "nodes"), ("cpu", "sweep"), ("sweep", "nodes"),
    ):  # fmt: skip
        if getattr(options, one) and getattr(options, other):
            name = f"--{other.replace('_', '-')}"
            raise UsageError(
                f"{name} does nothing with --{one}", code="option-without-effect", fix=f"leave out {name} or --{one}"
            )


def this_machine(job: Job) -> tuple[Card, Assumed]:
    """This machine's processor as a card, its speed measured for the job's model: all of it can be reached."""
    from midstream.engines.local.speed import measured, memory_gb  # they load PyTorch

    flops, bandwidth, layer_s = measured(job.learner.threads, job.shape.hidden)
    speed, moved = flops / 1e12, bandwidth / 1e9
    card = Card(
        half=speed,
        single=speed,
        memory=round(memory_gb(), 1),
        bandwidth=moved,
        pcie=moved,
        network=moved,
        source="measured",
    )
    return card, Assumed(compute=1.0, memory=1.0, transfer=1.0, layer_s=layer_s, served_layer_s=layer_s)


def _sizes(text: str) -> list[int]:
    try:
        return [shared.parse_count(part.strip()) for part in text.split(",")]
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--sweep {text}: {error}", code="setting-range", fix="e.g. --sweep 8,64,1000") from error


def _record(job: Job, way: Way, size: int, price: float | None) -> dict[str, Any]:
    """A way as JSON: all of it, with its sums."""
    cost = {} if price is None else {"dollars": size * price * way.seconds / 3600}
    return {"gpus": size, **asdict(way), "seconds": way.seconds, "tool_calls_per_s": _calls(job, way), **cost}


def _calls(job: Job, way: Way) -> float:
    """Tool calls a second while trajectories run."""
    rollout = sum(phase.seconds for phase in way.phases[:3])
    return job.load.trajectories * job.load.turns / rollout


# -- the screen --------------------------------------------------------------------------------------------------------


def _columns(*heads: tuple[str, Side]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(name for name, _ in heads))
    for name, justify in heads:
        table.add_column(name, justify=justify, header_style="dim", overflow="fold")
    return table


def _tokens(job: Job) -> RenderableType:
    load = job.load
    lines = (
        f"A step: {load.trajectories:,} trajectories, {load.rows:,.0f} rows, {load.sampled:,.0f} tokens sampled, "
        f"{load.all:,.0f} in the rows,\n{load.unique:,.0f} of them unique ({load.all / load.unique:.1f} times fewer). "
        f"Tokens {load.source}."
    )
    return Padding(Text(lines), (0, 0, 1, 0))


def _table(found: list[tuple[int, Way]], card: Card, steps: int, price: float | None) -> RenderableType:
    """A line for each way."""
    money: list[tuple[str, Side]] = [] if price is None else [("dollars", "right")]
    table = _columns(
        ("way", "left"), ("memory of a device", "right"), ("host", "right"), ("a step", "right"),
        (f"{steps:,} steps", "right"), *money, ("first limit", "left"),
    )  # fmt: skip
    for size, way in found:
        if way.kind == "Tinker":
            memory = Text("nothing here")
        else:
            tight = ", tight" * (way.fits and way.bytes > _TIGHT * card.memory * GIB)
            memory = Text(f"{way.bytes / GIB:.1f} of {card.memory:g} GB{tight}", "" if way.fits else "red")
        host = f"{way.host / GIB:.1f} GB" if way.host else ""
        cells = [_time(way.seconds), _time(way.seconds * steps)]
        cells += [] if price is None else [f"{size * price * way.seconds * steps / 3600:,.0f}"]
        name = f"{way.kind}, {', '.join(key.rpartition('.')[2] for key in way.settings)}".rstrip(", ")
        table.add_row(name, memory, host, *(cells if way.fits else ["no", *[""] * (len(cells) - 1)]), way.first)
    return Padding(table, (0, 0, 1, 2))


def _sweep(job: Job, found: list[tuple[int, Way]], price: float | None) -> RenderableType:
    """A line for each number of GPUs."""
    heads = ["GPUs", "memory", "a step", "rollout", "update", "sync", "rows/GPU", "tools/s"]
    heads += [] if price is None else ["dollars"]
    right: list[tuple[str, Side]] = [(head, "right") for head in heads]
    table = _columns(*right, ("first limit", "left"))
    for size, way in found:
        seconds = {phase.name: phase.seconds for phase in way.phases}
        rollout = sum(phase.seconds for phase in way.phases[:3])
        sync = seconds["collectives"] + seconds["weight sync"] + seconds["controller"]
        cells = [_time(way.seconds), _time(rollout), _time(way.seconds - rollout - sync), _time(sync)]
        cells += [f"{job.load.rows / size:,.1f}", f"{_calls(job, way):,.1f}"]
        cells += [] if price is None else [f"{size * price * way.seconds / 3600:,.2f}"]
        table.add_row(
            f"{size:,}", f"{way.bytes / GIB:.1f} GB", *(cells if way.fits else ["no"] * len(cells)), way.first
        )
    return Padding(table, (0, 0, 1, 2))


def _formulas(way: Way, size: int, nodes: int) -> list[RenderableType]:
    """The command, the phases of a step, and what a device holds."""
    if not way.fits:
        return []
    rows = _columns(("", "right"), ("", "left"), ("", "left"))
    for phase in way.phases:
        if phase.seconds:
            rows.add_row(_time(phase.seconds), phase.name, Text(phase.formula, "dim"))
    for part in way.parts:
        moment = {"always": "", "update": "update: ", "step": "step: ", "sampling": "sampling: "}[part.moment]
        rows.add_row(
            f"{part.bytes / GIB:.1f} GB",
            part.name,
            Text(f"{'in host memory: ' if part.host else moment}{part.formula}", "dim"),
        )
    with_ = "".join(f" --set {key}={value}" for key, value in way.settings.items())
    title = {
        "one device": f"one device:{with_ or ' as it stands'}",
        "torchrun": f"torchrun: {f'{nodes} nodes' if nodes > 1 else f'--nproc {size}'}{with_}",
        "Tinker": "Tinker, if its server has these GPUs, at sampling.temperature = 1",
        "verl": "verl on Ray",
    }[way.kind]
    return [Text(title, "bold"), Padding(rows, (0, 0, 1, 2))]


def _assumptions(card: Card, name: str, assumed: Assumed) -> list[RenderableType]:
    text = (
        f"Of {name}: {card.half:.4g} TFLOP/s bfloat16, {card.single:.4g} float32, {card.bandwidth:,.4g} GB/s memory, "
        f"{card.link or card.pcie:.4g} GB/s between GPUs,\n{card.pcie:.4g} to the host, {card.network:.4g} between "
        f"nodes ({card.source}). Memory is in GB of 2^30 bytes.\n"
        f"Assumed: {assumed.compute:.0%} of the TFLOP/s, {assumed.memory:.0%} of the memory's bandwidth, "
        f"{assumed.transfer:.0%} of transfers; a layer of a decoding step {assumed.layer_s * 1e3:.2g} ms in process, "
        f"{assumed.served_layer_s * 1e3:.2g} ms on a server. Not counted: evaluations, checkpoints, judges."
    )
    return [Text(text, "dim")]


def _time(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= 2 * size or unit == "s":
            return f"{seconds / size:.3g} {unit}" if seconds >= 0.01 or not seconds else f"{seconds * 1e3:.2g} ms"
    raise AssertionError
