"""How near `midstream plan` comes: to steps measured on this machine, and to published runs.

    python benchmarks/plan.py --published      # arithmetic, at once
    python benchmarks/plan.py                  # also trains two small recipes for two steps on one thread: minutes

A published run has its model, hardware, batch and time from `source`. `tokens` says whether the mean length is
published, too; where it is not, the run is computed for a shorter and a longer one, and the ratio is a range.
"""

from __future__ import annotations

import argparse
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from midstream import api
from midstream.cli.plan import this_machine
from midstream.recipe.cards import card_of
from midstream.recipe.load import Load, load_like, load_of
from midstream.recipe.memory import SHAPES, Shape
from midstream.recipe.overrides import LearningChanges, changed_recipe
from midstream.recipe.plan import Job, job_of, ways
from midstream.runs import RunDirectory
from midstream.training.settings import LearnerConfig

PUBLISHED = Path(__file__).with_name("plan_published.toml")
OTHER_SHAPES = {  # hidden, layers, heads, key-value heads, inner, vocabulary, width of a head
    "Llama-3.1-8B": (4096, 32, 32, 8, 14336, 128256, 128),
    "Qwen3-32B": (5120, 64, 64, 8, 25600, 151936, 128),
}
SMALL = {  # recipes that this machine trains, with the settings that make them short
    "text-tiny": (),
    "text-tiny, 5 M parameters": (
        "engines.policy.weights=copying", "engines.policy.hidden_size=256", "engines.policy.layers=6",
        "engines.policy.heads=8",
    ),
}  # fmt: skip


def shape_named(name: str) -> Shape:
    """The shape of a published run's model."""
    if name in SHAPES:
        return SHAPES[name]
    hidden, layers, heads, kv_heads, inner, vocabulary, head_dim = OTHER_SHAPES[name]
    return Shape(
        hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads, intermediate=inner, vocabulary=vocabulary,
        head_dim=head_dim, tied=False, bias=False,
    )  # fmt: skip


def stage_job(run: dict[str, Any], stage: dict[str, Any], completion: float) -> Job:
    """A job of a published run; what tools put between replies is not known, and left out."""
    prompt, count = stage["prompt"], stage["tasks"] * stage["group"]
    row = prompt + completion
    load = Load(
        tasks=stage["tasks"], trajectories=count, turns=1, rows=count, prompt=prompt, prefilled=stage["tasks"] * prompt,
        sampled=count * completion, all=count * row, unique=stage["tasks"] * prompt + count * completion,
        longest=stage["longest"], context=prompt + completion / 2, source=run["source"],
    )  # fmt: skip
    return Job(
        shape=shape_named(run["model"]), dtype="bfloat16", learner=LearnerConfig(recompute_activations=True), load=load,
        minibatches=stage.get("minibatches", 1), reference=run["reference"],
    )  # fmt: skip


def predicted(run: dict[str, Any], which: int) -> float:
    """Hours of GPUs of all steps of all stages, for the shorter (0) or the longer (1) length."""
    hours = 0.0
    for stage in run["stages"]:
        gpus, _, card = card_of(stage["gpus"])
        lengths = stage["completion"]
        job = stage_job(run, stage, lengths[which] if isinstance(lengths, list) else lengths)
        way = next(way for way in ways(job, card, gpus) if way.kind == "verl")
        hours += way.seconds * stage["steps"] * gpus / 3600
    return hours


def published() -> None:
    """Print a Markdown table of published runs."""
    print("| run | model | GPUs | steps | GPU hours, published | planned | ratio | mean length |")
    print("|---|---|---|---|---|---|---|---|")
    for run in tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))["runs"]:
        reported, low, high = run["gpu_hours"], predicted(run, 0), predicted(run, 1)
        gpus = ", ".join(dict.fromkeys(stage["gpus"] for stage in run["stages"]))
        steps = sum(stage["steps"] for stage in run["stages"])
        span = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
        ratio = f"{low / reported:.2f}" if low == high else f"{low / reported:.2f} to {high / reported:.2f}"
        cells = (f"[{run['name']}]({run['url']})", run["model"], gpus, f"{steps:,}", f"{reported:.3g}", span, ratio)
        print(f"| {' | '.join(cells)} | {run['tokens']} |", flush=True)


def on_this_machine() -> None:
    """Train each small recipe for two steps, and print its CPU seconds a step next to the plan's."""
    print("| recipe | part | measured, s | planned, s | planned / measured |")
    print("|---|---|---|---|---|")
    for name, settings in SMALL.items():
        overrides = ["learner.threads=1", "training.steps=2", "evaluation.at=none", *settings]
        recipe = changed_recipe(name.partition(",")[0], **LearningChanges(overrides=overrides))
        with tempfile.TemporaryDirectory() as out:
            api.train(recipe, f"{out}/run")
            run = RunDirectory.open(Path(out) / "run")
            metrics, timings = list(run.metrics.read()), list(run.timings.read())
        for tokens, load in {"as measured": load_like(recipe, metrics), "assumed": load_of(recipe)}.items():
            job = job_of(recipe, load)
            card, assumed = this_machine(job)
            planned = ways(job, card, 1, assumed=assumed)[0].seconds
            spent = min(timing.cpu_s for timing in timings)
            print(f"| {name} | tokens {tokens} | {spent:.3g} | {planned:.3g} | {planned / spent:.2f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", action="store_true", help="published runs alone")
    if not parser.parse_args().published:
        on_this_machine()
    published()
