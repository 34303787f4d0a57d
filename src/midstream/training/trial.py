"""A trial before training: rollouts of more tasks than a step has, then one step, whose weights are thrown away.

It measures what decides whether training can work: whether the agent reads the model's replies, whether groups hold
successes and failures (equal rewards have no advantage), what a step takes.
"""

from __future__ import annotations

import resource
import sys
import time

from midstream.core.data import Frozen
from midstream.core.metrics import StepMetrics
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
