"""Rollouts that run ahead of training (plugins/midstream-async): what a step takes, against the formula and S = 0.

python benchmarks/ahead.py latency    # simulated latencies: the period of a step
python benchmarks/ahead.py tails      # 64 rollouts with heavy-tailed latency: throughput
python benchmarks/ahead.py processes  # a real tiny model: rollouts and updates on two cores
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from midstream.cli.main import main as main_of_cli
from midstream.core.agent import RunContext
from midstream.core.task import Task
from midstream.core.trajectory import Call, Score, Trajectory, Turn
from midstream.rollout import Environment, RolloutConfig
from midstream.training.flow_grpo import FlowGRPO
from midstream.training.protocols import LossStats, Row
from midstream.training.settings import TrainingConfig
from midstream_async.pipeline import Pipeline
from midstream_async.settings import PipelineConfig, StreamConfig
from midstream_async.stream import Stream

COMBINATIONS = [(0.4, 0.1), (0.2, 0.2), (0.1, 0.4), (0.9, 0.1)]  # seconds of rollouts and update


@dataclass
class Sleeps:
    """An agent whose runs take `latency(seed)` seconds."""

    latency: Callable[[int], float]
    name: str = "sleeps"

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        await asyncio.sleep(self.latency(context.seed))
        call = Call(
            role="planner", engine="none", completion="", prompt_ids=(1,), completion_ids=(2,), logprobs=(-1.0,),
        )  # fmt: skip
        turns = (Turn(index=1, calls=(call,)),)
        return Trajectory(id="", task_id=task.id, question=task.question, seed=context.seed, turns=turns, answer="")

    async def close(self) -> None:
        pass


class Coin:
    """A reward that differs within a group."""

    name, judged = "coin", False

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        return Score(value=float(trajectory.seed % 2))

    def check(self, task: Task) -> None:
        pass

    async def close(self) -> None:
        pass


class Tasks:
    """Any number of tasks."""

    families = ("all",)

    def sample(self, split: str, count: int, seed: int, weights: object = None) -> list[Task]:
        return [Task(id=f"{seed}-{place}", question="?", answer="", family="all") for place in range(count)]


class Waits:
    """A learner whose update takes `seconds` for all its rows."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def before_step(self, seed: int) -> None:
        pass

    def logprobs(self, rows: Sequence[Row]) -> list[tuple[float, ...]]:
        return [row.old_logprobs for row in rows]

    def forward_backward(self, rows: Sequence[Row], loss: object) -> LossStats:
        time.sleep(self.seconds)
        return LossStats(tokens=len(rows))

    def optimizer_step(self, learning_rate: float) -> float:
        return 0.0


class NoVersions:
    """Nothing to hand over."""

    async def restore(self) -> None:
        pass

    async def publish(self, version: int) -> None:
        pass

    def save(self, directory: Path, versions: Sequence[int]) -> None:
        pass

    def load(self, directory: Path) -> None:
        pass


async def steps_of(
    kind: str, staleness: int, steps: int, latency: Callable[[int], float], update_s: float, **more: Any
) -> list[float]:
    """Seconds of each step."""
    tasks = more.get("tasks_per_step", 4)
    config = TrainingConfig(steps=steps, tasks_per_step=tasks, group_size=8, minibatches=1)
    parts: dict[str, Any] = {
        "config": config,
        "learner": Waits(update_s),
        "environment": Environment(
            agent=Sleeps(latency), tools=(), engines={}, reward=Coin(), config=RolloutConfig(concurrency=1024)
        ),
        "source": Tasks(),
        "publish": lambda version: asyncio.sleep(0),
        "seed": 0,
    }
    with tempfile.TemporaryDirectory() as directory:
        algorithm: FlowGRPO
        if kind == "none":
            algorithm = FlowGRPO(**parts)
        elif kind == "pipeline":
            ahead = PipelineConfig(staleness=staleness)
            algorithm = Pipeline(**parts, ahead=ahead, versions=NoVersions(), directory=Path(directory))
        else:
            algorithm = Stream(**parts, ahead=StreamConfig(staleness=staleness), versions=NoVersions())
        seconds = []
        for step in range(1, steps + 1):
            started = time.monotonic()
            await algorithm.step(step)
            seconds.append(time.monotonic() - started)
        return seconds


def latency(options: argparse.Namespace) -> None:
    """The period against max(t_u, (t_r + t_u) / (1 + S)), without the steps that fill and empty the pipeline."""
    print("rollouts, update (s)    S    period    formula    ratio")
    for rollout_s, update_s in COMBINATIONS:
        for staleness in (0, 1, 2, 4):
            count = 8 * (staleness + 1)
            run = steps_of("pipeline", staleness, count, lambda seed: rollout_s, update_s)  # noqa: B023
            seconds = asyncio.run(run)[staleness + 1 : count - staleness]
            period, formula = fmean(seconds), max(update_s, (rollout_s + update_s) / (1 + staleness))
            print(
                f"{rollout_s:8.1f} {update_s:8.1f} {staleness:9} {period:9.3f} {formula:10.3f} {period / formula:8.3f}"
            )


def tails(options: argparse.Namespace) -> None:
    """64 rollouts a step, most 0.05 s, a few very long: steps a second against S = 0, interleaved."""

    def heavy(seed: int) -> float:
        return min(2.0, 0.05 * random.Random(seed).paretovariate(1.1))

    kinds = [
        ("none", 0),
        ("pipeline", 1),
        ("pipeline", 2),
        ("pipeline", 4),
        ("stream", 1),
        ("stream", 2),
        ("stream", 4),
    ]
    found: dict[tuple[str, int], list[float]] = {kind: [] for kind in kinds}
    for _ in range(options.repeats):
        for kind in kinds:
            seconds = asyncio.run(steps_of(*kind, 20, heavy, 0.1, tasks_per_step=8))
            found[kind].append(sum(seconds))
    base = fmean(found["none", 0])
    for (kind, staleness), seconds in found.items():
        print(f"{kind:9} S = {staleness}: {fmean(seconds):6.2f} s for 20 steps, {base / fmean(seconds):.2f} x S = 0")


def processes(options: argparse.Namespace) -> None:
    """Steps of a recipe with and without staleness, interleaved: what each takes, without the first ones."""
    words = ["evaluation.at=none", f"training.steps={options.steps}", "learner.threads=1", *options.set]
    found: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(options.repeats):
        for staleness in found:
            changes = words if not staleness else [*words, f"training.asynchrony.staleness={staleness}"]
            with tempfile.TemporaryDirectory() as root, redirect_stdout(None):
                run = Path(root) / "run"
                sets = [word for change in changes for word in ("--set", change)]
                main_of_cli(["train", options.recipe, "--seed", "1", "--out", str(run), "--quiet", *sets])
                timings = [json.loads(line) for line in (run / "timings.jsonl").read_text().splitlines()]
            found[staleness].append(sum(one["duration_s"] for one in timings[2:-1]) / len(timings[2:-1]))
            if not staleness:
                print({key: round(fmean(one[key] for one in timings[2:-1]), 2) for key in ("rollout_s", "update_s")})
    print(
        f"a step: {fmean(found[0]):.2f} s, S = 1: {fmean(found[1]):.2f} s, "
        f"ratio {fmean(found[1]) / fmean(found[0]):.2f}"
    )


def main() -> None:
    """Run the part that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["latency", "tails", "processes"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--recipe", default="flow-grpo-tiny", help="of `processes`")
    parser.add_argument("--set", action="append", default=[], help="another setting of the recipe")
    options = parser.parse_args()
    {"latency": latency, "tails": tails, "processes": processes}[options.part](options)


if __name__ == "__main__":
    main()
