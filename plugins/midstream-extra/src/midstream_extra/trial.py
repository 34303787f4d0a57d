"""`midstream train RECIPE --try`: rollouts of more tasks than a step has, then one step, whose weights are thrown away.

It measures what decides whether training can work: whether the agent reads the model's replies, whether groups hold
successes and failures (equal rewards have no advantage), what a step takes.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from typing import TYPE_CHECKING

from midstream.cli import options as shared
from midstream.core.data import Frozen
from midstream.core.errors import UsageError
from midstream.core.metrics import StepMetrics
from midstream.process import allow_event_loop, use_threads
from midstream.recipe.build import Build
from midstream.recipe.overrides import LearningChanges, changed_recipe
from midstream.recipe.schema import Recipe
from midstream.recipe.sessions import parts_of
from midstream.report.blocks import Block, facts

if TYPE_CHECKING:
    from midstream.training.session import Parts

TASKS, GROUP = 16, 8
_READABLE = 0.8  # share of readable turns below which the form is the problem
_CONTRAST = 0.25  # share of groups with both outcomes below which most of a step is wasted
_LONG_S = 600.0  # of all steps


class RecipeTrial(Frozen):
    """Measurements of a trial. Seconds are of a step of the recipe; memory is the peak of all."""

    tasks: int
    group_size: int
    success: float
    turns: int
    readable: float  # share of the turns in which the agent understood the model
    contrast: float  # share of the groups that hold different rewards
    tools: dict[str, float] = {}  # share of turns by tool, and "malformed"
    rollout_s: float
    update_s: float
    update_rows: int
    memory_gb: float
    steps: int
    advice: tuple[str, ...] = ()

    @property
    def training_s(self) -> float:
        """Seconds of all steps, without evaluations."""
        return self.steps * (self.rollout_s + self.update_s)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option to `train`."""
    text = "play 16 tasks, make one step that is thrown away, and say what decides whether training can work"
    parser.add_argument("--try", dest="trial", action="store_true", help=text)


def instead(options: argparse.Namespace) -> int | None:
    """With `--try`, try the recipe instead of training it; returns the exit code, None to train."""
    if not options.trial or options.dry_run:
        return None
    for name in ("out", "record", "replay", "track"):
        if getattr(options, name):
            what, fix = f"--{name} does nothing with --try, which keeps no run", "leave it out"
            raise UsageError(what, code="option-without-effect", fix=fix)
    recipe = changed_recipe(options.recipe, **shared.changes(LearningChanges, options))
    with shared.spinner("playing 16 tasks, then one step", silent=options.quiet):
        trial = try_training(recipe)
    return shared.show(options, trial.model_dump(), [_screen(trial)])


@allow_event_loop
def try_training(recipe: Recipe | str) -> RecipeTrial:
    """Play some tasks and make one step of a recipe, which is thrown away, to see if training can work.

    Raises `UsageError` for a recipe that trains no weights, or begins with a warm start.
    """
    recipe = changed_recipe(recipe) if isinstance(recipe, str) else recipe
    if recipe.training is None or recipe.training.algorithm != "flow_grpo" or recipe.warm_start is not None:
        raise UsageError(
            f"recipe {recipe.name!r} has no reinforcement of a pretrained model to try",
            code="not-trainable",
            fix="midstream train it without --try; --dry-run says how much there is to do",
        )
    with Build(recipe) as build:
        parts = parts_of(build)
        use_threads(recipe, learns=True)
        return asyncio.run(measure(parts))


async def measure(parts: Parts) -> RecipeTrial:
    """Play `TASKS` x `GROUP` rollouts, make a step as the recipe has it, and say what to change before training."""
    config = parts.training
    played = parts.flow_grpo(
        config.model_copy(update={"tasks_per_step": TASKS, "group_size": GROUP, "resample_uniform": 0})
    )
    await parts.publish(0)
    metrics = played.outcome(1, await played.sample(1), [], [], rollout_s=0.0).metrics
    started = time.perf_counter()
    step = await parts.flow_grpo(config).step(1)
    # Bytes on macOS, elsewhere kilobytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trial = RecipeTrial(
        tasks=TASKS,
        group_size=GROUP,
        success=metrics.reward_mean,
        turns=metrics.tool_use.turns,
        readable=1 - metrics.tool_use.share.get("malformed", 0.0),
        contrast=1 - (metrics.groups_uniform + metrics.groups_broken) / max(1, metrics.groups),
        tools=metrics.tool_use.share,
        rollout_s=step.rollout_s,
        update_s=time.perf_counter() - started - step.rollout_s,
        update_rows=step.metrics.rows,
        memory_gb=peak / (1 << 30 if sys.platform == "darwin" else 1 << 20),
        steps=config.steps,
    )
    return trial.model_copy(update={"advice": tuple(_advice(trial, metrics))})


def _advice(trial: RecipeTrial, metrics: StepMetrics) -> list[str]:
    found = []
    if trial.readable < _READABLE:
        found.append(
            f"{1 - trial.readable:.0%} of the turns are not readable: take a larger model, or a form that this one can "
            "write (AgentFlow: modules as in midstream-worlds' agentflow-small; one stream: another agent.template)"
        )
    if metrics.no_contrast and trial.readable:
        found.append(metrics.no_contrast)
    elif trial.contrast < _CONTRAST:
        ease = "easier" if trial.success < 0.5 else "harder"
        found.append(f"few groups hold both outcomes: take {ease} tasks, or set training.resample_uniform = 2")
    if not trial.update_rows:
        found.append("all groups of the measured step were uniform, so it made no update: a real one takes longer")
    if trial.training_s > _LONG_S:
        found.append("to take less time: fewer tasks_per_step, fewer max_tokens, or a smaller model")
    return found


def _screen(trial: RecipeTrial) -> Block | None:
    step = trial.rollout_s + trial.update_s
    rows = [
        ("readable turns", f"{trial.readable:.0%} of {trial.turns}" if trial.turns else "none: no reply called a tool"),
        ("contrast", f"{trial.contrast:.0%} of {trial.tasks} groups have both outcomes: what there is to learn from"),
        ("success", f"{trial.success:.0%} of {trial.tasks * trial.group_size}"),
        ("tools", ", ".join(f"{name} {share:.0%}" for name, share in trial.tools.items())),
        ("a step", f"{step:.0f} s: rollouts {trial.rollout_s:.0f} s, update {trial.update_s:.0f} s"),
        (f"{trial.steps} steps", f"{trial.training_s / 60:.1f} minutes, without evaluations"),
        ("peak memory", f"{trial.memory_gb:.1f} GB"),
        *(("change", words) for words in trial.advice or ("nothing: train it",)),
    ]
    return facts(rows)
