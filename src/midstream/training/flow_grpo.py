"""Flow-GRPO: roll out groups in the live loop, give each outcome to every turn, take clipped steps with KL.

Source: arXiv 2510.05592, equations 4 to 7 and 10. One step is `FlowGRPO.step`; docs/flow-grpo.md numbers its details.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from midstream.core.errors import BudgetError, TrainingError
from midstream.core.metrics import StepMetrics, Tally, branches, tool_marks
from midstream.core.seeds import derive_seed
from midstream.core.sequences import splits, trainable
from midstream.core.source import TaskSource
from midstream.core.task import Task
from midstream.core.tool import PerRun, RunProgress
from midstream.core.trajectory import OUTER_LIMITS, Trajectory
from midstream.rollout import Environment, Group, OnDone, rollout, shuffle_rewards
from midstream.runs.budget import require_within_budget
from midstream.training.own import Advantage
from midstream.training.protocols import Learner, LossStats
from midstream.training.rows import RowBatch, build_rows, runs_of, split_minibatches, tokens_after_prompt
from midstream.training.settings import TrainingConfig

SUCCESS_MEMORY = 0.02  # weight of the newest trajectory in a family's running success
MAX_LOGPROB_GAP = 0.1  # mean |learner's log-probability - recorded one| per token that the first step allows


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """The metrics of one training step and, for reinforcement, its trajectories and the seconds that they took."""

    metrics: StepMetrics
    trajectories: Sequence[Trajectory] = ()
    rollout_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """The groups of one step, those of them that are trained on, and their rows in one batch a mini-batch."""

    groups: Sequence[Group]
    kept: Sequence[Group]
    batches: Sequence[RowBatch]


# The running success of each family of a stage at which the next stage begins.
STAGE_SUCCESS = 0.8


@dataclass(kw_only=True)
class FlowGRPO:
    """The algorithm.

    `role` is the module that is trained. `publish(step)` hands the weights after that step to the engine that samples;
    an engine that shares the learner's model has them already. `success` is the running success of each family that is
    trained on, and `stage` the number of `training.stages` after the first that have begun.
    """

    config: TrainingConfig
    learner: Learner
    environment: Environment
    source: TaskSource
    publish: Callable[[int], Awaitable[None]]
    seed: int
    role: str = "planner"
    on_done: OnDone | None = None  # receives trajectories as they end
    _gap_checked: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        trained = [family for stage in self.config.stages for family in stage] or self.source.families
        self.success = dict.fromkeys(trained, 0.0)
        self.stage = 0
        self.progress = RunProgress(step=0, steps=self.config.steps)
        own: Any = self.config.advantage
        self.advantage: Advantage | None = None if own is None else own.config.build(None)
        forks: Any = self.config.branching
        self.rollout = rollout if forks is None else partial(forks.config.build(None), roles=self.roles)

    def save(self, directory: Path) -> None:
        """Write what a checkpoint has to hold besides the learner's state."""
        (directory / "algorithm.json").write_text(json.dumps(self.state_dict()), encoding="utf-8")

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote."""
        self.load_state_dict(json.loads((directory / "algorithm.json").read_text(encoding="utf-8")))

    def state_dict(self) -> dict[str, Any]:
        """Return what is known of the families."""
        return {"success": self.success, "stage": self.stage}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.success, self.stage = dict(state["success"]), state["stage"]

    async def step(self, step: int) -> StepOutcome:
        """Sample, score, learn. `step` counts from 1; everything random in it derives from (seed, step)."""
        started = time.perf_counter()
        self.learner.before_step(derive_seed(self.seed, "redraw", step))
        await self.publish(step - 1)
        success = dict(self.success)
        sampled = await self.sample(step)
        rollout_s = time.perf_counter() - started
        async with AsyncExitStack() as held:
            try:
                # An engine that batches continuously may still compute what a trajectory that has ended asked for.
                for engine in {id(each): each for each in self.environment.engines.values()}.values():
                    if (paused := getattr(engine, "paused", None)) is not None:
                        await held.enter_async_context(paused())
            except asyncio.CancelledError:
                self.success = success  # the step was not made
                raise
            stats, norms = self.update(sampled.batches, step)
        return self.outcome(step, sampled, stats, norms, rollout_s=rollout_s)

    async def sample(self, step: int) -> Sampled:
        """The rollouts of a step and the rows that they leave; the weights stay as they are.

        Raises `TrainingError` if no group has two finished trajectories, `BudgetError` at a limit.
        """
        self.begin(step)
        success = dict(self.success)
        try:
            groups = await self._rollout(step)
        except (BudgetError, asyncio.CancelledError):
            self.success = success  # the step was not made
            raise
        kept = self._select_groups(groups)
        return Sampled(groups=groups, kept=kept, batches=self.rows_of(kept, step))

    def begin(self, step: int) -> None:
        """Let the stage and what tools know of the progress of training follow the success so far."""
        while self.stage + 1 < len(self.config.stages):
            if min(self.success[family] for family in self.config.stages[self.stage]) < STAGE_SUCCESS:
                break
            self.stage += 1
        mean = fmean(self.success[family] for family in self._begun) if self.success else 0.0
        self.progress = RunProgress(step=step, steps=self.config.steps, success=mean)

    def outcome(
        self, step: int, sampled: Sampled, stats: Sequence[LossStats], norms: Sequence[float], *, rollout_s: float
    ) -> StepOutcome:
        """The record of a step whose updates had these losses and gradient norms."""
        tokens = max(1, sum(part.tokens for part in stats))
        metrics = StepMetrics(
            step=step,
            policy_version=step - 1,
            learning_rate=self._learning_rate(step),
            **self._rollout_metrics(sampled.groups, sampled.kept, sampled.batches),
            total_tokens=sum(part.total_tokens for part in stats),
            unique_tokens=sum(part.unique_tokens for part in stats),
            loss=fmean(part.loss for part in stats) if stats else 0.0,
            kl=sum(part.kl_sum for part in stats) / tokens,
            clip_fraction=sum(part.clipped for part in stats) / tokens,
            entropy=sum(part.entropy_sum for part in stats) / tokens if self.config.loss.entropy_coefficient else None,
            logprob_gap=stats[0].gap_sum / max(1, stats[0].tokens) if stats else 0.0,
            grad_norm=fmean(norms) if norms else 0.0,
        )
        trajectories = [trajectory for group in sampled.groups for trajectory in group.trajectories]
        return StepOutcome(metrics=metrics, trajectories=trajectories, rollout_s=rollout_s)

    @property
    def roles(self) -> Collection[str]:
        """The modules whose calls are trained."""
        return self.config.roles or (self.role,)

    @property
    def _begun(self) -> Collection[str]:
        """The families that are trained on now."""
        if not self.config.stages:
            return self.success
        return [family for stage in self.config.stages[: self.stage + 1] for family in stage]

    async def _rollout(self, step: int) -> list[Group]:
        """All groups of the step, also those that will not be trained on.

        With `resample_uniform`, other tasks are rolled out for the groups that `_select_groups` leaves out, at most so
        many times; the step then trains on what it has (arXiv 2503.14476, eq. 11, repeats this without a limit).
        """
        config = self.config
        groups = await self.roll_out([], config.tasks_per_step, step)
        for extra in range(1, config.resample_uniform + 1):
            missing = config.tasks_per_step - len(self._select_groups(groups))
            if not missing:
                break
            groups += await self.roll_out(groups, missing, step, extra)
        return groups

    def _select_groups(self, groups: Sequence[Group]) -> list[Group]:
        """The groups to train on: with `resample_uniform`, none whose finished trajectories all have one reward.

        It compares the recorded rewards, as DAPO does, without a penalty of length. A group with fewer than two
        finished trajectories is not uniform but broken, and stays to be counted.
        """
        if not self.config.resample_uniform:
            return list(groups)
        kept = []
        for group in groups:
            finished = (trajectory for trajectory in group.trajectories if trajectory.status == "ok")
            rewards = [trajectory.reward.value for trajectory in finished if trajectory.reward is not None]
            if len(rewards) < 2 or len(set(rewards)) > 1:
                kept.append(group)
        return kept

    async def roll_out(self, earlier: Sequence[Group], count: int, *rounds: int) -> list[Group]:
        """Roll out `count` tasks that are new to `earlier`; `rounds` are the step and, after its first, the round."""
        weights = None
        if self.config.family_sampling == "failure":
            weights = {family: 1.1 - rate for family, rate in self.success.items()}
        if self.config.stages:
            begun, every = self._begun, self.source.families
            weights = {family: (weights or {}).get(family, 1.0) if family in begun else 0.0 for family in every}
        drawn = derive_seed(self.seed, "tasks", *rounds)
        if self.config.family_sampling == "balanced":
            sampled = self._draw_balanced(count, drawn)
        else:
            sampled = self.source.sample("train", count, drawn, weights)
        tried = {group.task.id for group in earlier}
        tasks = [task for task in sampled if task.id not in tried]
        seed = derive_seed(self.seed, "rollout", *rounds)
        environment = replace(self.environment, progress=self.progress)
        groups = await self.rollout(
            environment, tasks, group_size=self.config.group_size, seed=seed, on_done=self.on_done
        )
        require_within_budget([trajectory for group in groups for trajectory in group.trajectories])
        self.count(groups)
        return groups

    def count(self, groups: Sequence[Group]) -> None:
        """Let the running success of each family follow these groups."""
        for group in groups:
            for trajectory in group.trajectories:
                if trajectory.reward is not None:
                    rate = self.success.get(trajectory.family, 0.0)
                    self.success[trajectory.family] = rate + SUCCESS_MEMORY * (trajectory.reward.value - rate)

    def _draw_balanced(self, count: int, seed: int) -> list[Task]:
        """Tasks of every family that is trained on, as often as of the others; of a random part if `count` is small."""
        families = list(self._begun)
        random.Random(seed).shuffle(families)
        tasks: list[Task] = []
        for place, family in enumerate(families):
            share = len(range(place, count, len(families)))
            weights = {each: float(each == family) for each in self.source.families}
            tasks += self.source.sample("train", share, derive_seed(seed, family), weights) if share else []
        return tasks

    def rows_of(self, groups: list[Group], step: int) -> list[RowBatch]:
        """The rows of each mini-batch of whole groups."""
        if not groups:
            # All rewards were equal in every group, and in those drawn in their place.
            return []
        config, seed = self.config, derive_seed(self.seed, "update", step)
        trained = [group.trajectories for group in groups]
        if config.shuffle_rewards:
            trained = shuffle_rewards(trained, seed)
        batches = [
            build_rows(part, config, role=self.role, seed=seed, advantage=self.advantage)
            for part in split_minibatches(trained, min(config.minibatches, len(trained)), seed)
        ]
        if all(batch.groups_broken == batch.groups for batch in batches):
            everyone = [trajectory for group in groups for trajectory in group.trajectories]
            errors = [trajectory.error for trajectory in everyone if trajectory.error]
            raise TrainingError(
                f"{len(errors)} of {len(everyone)} trajectories failed, and no group has two that finished; one of the "
                f"errors:\n{errors[0].message if errors else 'none'}",
                code="all-rollouts-failed",
                fix="check what they all need: the model's server, the tools, the reward",
            )
        return batches

    def update(self, batches: Sequence[RowBatch], step: int) -> tuple[list[LossStats], list[float]]:
        """One optimizer step a mini-batch; a mini-batch without rows makes none."""
        stats, norms = [], []
        for batch in batches:
            if batch.rows:
                stats.append(self.learner.forward_backward(batch.rows, self.config.loss))
                gap = stats[-1].gap_sum / max(1, stats[-1].tokens)
                # Once after each start, before the first update, the learner's weights are those that sampled.
                if gap > MAX_LOGPROB_GAP and not self._gap_checked:
                    raise TrainingError(
                        f"the learner's log-probabilities lie {gap:.3f} from the recorded ones (mean per token; at "
                        f"most {MAX_LOGPROB_GAP} is allowed)",
                        code="logprob-gap",
                        cause="the server samples from other weights or another dtype than the learner's, applies "
                        "settings of its own, or records log-probabilities before the temperature",
                        fix="serve the learner's model in its dtype with --logprobs-mode processed_logprobs "
                        "(docs/scale.md)",
                    )
                self._gap_checked = True
                norms.append(self.learner.optimizer_step(self._learning_rate(step)))
        return stats, norms

    def _learning_rate(self, step: int) -> float:
        """Linear rise over the first steps, linear fall to a tenth over the last."""
        config = self.config
        rise = min(1.0, step / config.warmup_steps)
        fall = min(1.0, max(0.1, (config.steps - step) / config.decay_steps)) if config.decay_steps else 1.0
        return config.learning_rate * rise * fall

    def _rollout_metrics(
        self, groups: Sequence[Group], kept: Sequence[Group], batches: Sequence[RowBatch]
    ) -> dict[str, Any]:
        """Fields of `StepMetrics` about the trajectories and what they left to train on."""
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        scored = [trajectory for trajectory in trajectories if trajectory.reward is not None]
        tally = Tally(scored)
        by_family: dict[str, list[float]] = {}
        for trajectory in scored:
            value = trajectory.reward.value if trajectory.reward else 0.0
            by_family.setdefault(trajectory.family, []).append(value)
        rewards = [value for values in by_family.values() for value in values]
        left_out: Counter[str] = Counter()
        trained: Counter[str] = Counter()
        for batch in batches:
            left_out.update(batch.left_out)
            for row in batch.rows:
                trained[row.role] += sum(row.sampled) if row.sampled else len(row.completion_ids)
        replaced = len(trajectories) - sum(len(group.trajectories) for group in kept)
        if replaced:
            left_out["uniform group, left out (training.resample_uniform)"] = replaced
        asked = [
            [call for call in each.calls if call.role == role and call.prompt_ids and not call.replayed]
            for each in trajectories
            for role in self.roles
        ]
        runs = [run for calls in asked for run in runs_of(calls, self.config.turns)]
        sampled = sum(len(call.completion_ids) for run in runs for call in run)
        merged = [
            [call for call in trajectory.calls if call.role == role and trainable(call)]
            for group in (kept if self.config.turns == "merged" else ())
            for trajectory in group.trajectories
            for role in self.roles
        ]
        # What changes over training: the stage, counted from 1, and the probabilities of tools.
        schedules: dict[str, float] = {"training.stages": self.stage + 1} if self.config.stages else {}
        for tool in self.environment.tools:
            if isinstance(tool, PerRun):
                schedules |= tool.probabilities(self.progress)
        # A conversation of its own begins a row by design.
        whys = Counter(split.why for calls in merged for split in splits(calls) if split.why != "another conversation")
        return {
            "reward_mean": fmean(rewards) if rewards else 0.0,
            "reward_by_family": {family: fmean(values) for family, values in sorted(by_family.items())},
            "trajectories": len(trajectories),
            "trajectories_error": sum(trajectory.status == "error" for trajectory in trajectories),
            "trajectories_retried": sum(trajectory.attempts > 1 for trajectory in trajectories),
            "limits": Counter(reason for each in trajectories if (reason := each.stop_reason) in OUTER_LIMITS),
            "request_failures": sum(trajectory.request_failures for trajectory in trajectories),
            "replies_repaired": sum(trajectory.replies_repaired for trajectory in trajectories),
            "groups": sum(batch.groups for batch in batches) + len(groups) - len(kept),
            "groups_uniform": sum(batch.groups_uniform for batch in batches) + len(groups) - len(kept),
            "groups_broken": sum(batch.groups_broken for batch in batches),
            "samples_left_out": dict(sorted(left_out.items())),
            "turns_mean": fmean(len(trajectory.turns) for trajectory in scored) if scored else 0.0,
            "reward_parts": tally.parts(),
            "tool_use": tally.tools(),
            "tool_marks": tool_marks(trajectories),
            "schedules": schedules,
            "streams": tally.streams(),
            "branches": branches(trajectories),
            "rows": sum(len(batch.rows) for batch in batches),
            "rows_split": dict(sorted(whys.items())),
            "tokens_by_role": dict(sorted(trained.items())) if len(self.roles) > 1 else {},
            "prompt_tokens": sum(len(run[0].prompt_ids) + tokens_after_prompt(run) for run in runs) - sampled,
            "completion_tokens": sampled,
        }
