"""Supervised learning on transcripts: the warm start before reinforcement, and the controls it is compared with."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from midstream.core.errors import TrainingError
from midstream.core.protocols import Row, TaskSource
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.rollout import Environment, rollout
from midstream.training.learner import LocalLearner
from midstream.training.settings import SupervisedConfig, WarmStartConfig

COLLECTED_AT_ONCE = 500


class Transcripts:
    """Rows of a policy's transcripts, handed out in batches of similar length, each row once an epoch."""

    def __init__(self, rows: Sequence[Row], batch_size: int, seed: int) -> None:
        if not rows:
            raise TrainingError(
                "no transcript is left to learn from",
                cause="the policy succeeded on none of its tasks",
                mend="raise `transcripts`, or set `successes_only = false`",
            )
        self.rows, self.batch_size, self.rng = rows, batch_size, random.Random(seed)
        self._batches: list[list[Row]] = []

    def batch(self) -> list[Row]:
        """The next batch."""
        if not self._batches:
            self._batches = self._epoch()
        return self._batches.pop()

    def _epoch(self) -> list[list[Row]]:
        """Shuffle, sort within stretches of eight batches by length, cut, shuffle the batches."""
        order, size = list(self.rows), self.batch_size
        self.rng.shuffle(order)
        stretches = [
            sorted(order[i : i + 8 * size], key=lambda row: len(row.prompt_ids)) for i in range(0, len(order), 8 * size)
        ]
        batches = [stretch[i : i + size] for stretch in stretches for i in range(0, len(stretch), size)]
        self.rng.shuffle(batches)
        return batches


async def collect(
    environment: Environment,
    source: TaskSource,
    tokenizer: Any,
    config: SupervisedConfig,
    seed: int,
    report: Callable[[str], None],
) -> list[Row]:
    """Run the environment's policy on training tasks and make one row of each of its actions."""
    rows: list[Row] = []
    for start in range(0, config.transcripts, COLLECTED_AT_ONCE):
        report(f"collecting transcripts {start}/{config.transcripts}")
        count = min(COLLECTED_AT_ONCE, config.transcripts - start)
        tasks = source.sample("train", count, derive_seed(seed, "transcripts", start))
        groups = await rollout(environment, tasks, seed=derive_seed(seed, "transcripts", start))
        for group in groups:
            trajectory = group.trajectories[0]
            if not config.successes_only or (trajectory.reward and trajectory.reward.value == 1):
                rows += _rows(trajectory, tokenizer)
    return rows


def _rows(trajectory: Trajectory, tokenizer: Any) -> list[Row]:
    """Supervised rows are tokenised from text: nobody sampled them from the policy that learns."""
    return [
        Row(
            prompt_ids=tuple(tokenizer.encode(call.prompt, add_special_tokens=False)),
            completion_ids=(*tokenizer.encode(call.completion, add_special_tokens=False), tokenizer.eos_token_id),
            old_logprobs=(),
            advantage=0.0,
            weight=1.0,
            kl_weight=0.0,
            trajectory_id=trajectory.id,
        )
        for call in trajectory.calls
        if call.role == "planner"
    ]


def learning_rate(config: SupervisedConfig, step: int) -> float:
    """Linear rise, then linear fall to `final_share` of the peak; steps count from 1."""
    rise = min(1.0, step / config.warmup_steps)
    return config.learning_rate * rise * max(config.final_share, 1 - (step - 1) / max(1, config.steps))


async def warm_start(
    learner: LocalLearner,
    environment: Environment,
    source: TaskSource,
    tokenizer: Any,
    config: WarmStartConfig,
    seed: int,
    report: Callable[[str], None],
) -> None:
    """Teach the action language and copying from clumsy transcripts; the plan itself is left to reinforcement."""
    rows = await collect(environment, source, tokenizer, config, seed, report)
    transcripts = Transcripts(rows, config.batch_size, derive_seed(seed, "batches"))
    for step in range(1, config.steps + 1):
        learner.redraw(derive_seed(seed, "warm start", step))
        loss = learner.supervised_step(transcripts.batch(), learning_rate(config, step), config.prompt_weight)
        if step % 10 == 0:
            report(f"warm start {step}/{config.steps}, loss {loss:.2f}")
    learner.rebase()


async def copy_rate(environment: Environment, tasks: Sequence[Task], names: set[str], seed: int) -> float:
    """Of the first actions that look something up, the share that names a place of the question asked."""
    asked = [task for task in tasks if names & set(task.question.split())]
    groups = await rollout(environment, asked, seed=seed)
    actions = [
        (group.task, turn.action)
        for group in groups
        for turn in group.trajectories[0].turns[:1]
        if turn.action and turn.action.tool == "local_search"
    ]
    copied = sum(bool(names & set(task.question.split()) & set(action.context.split())) for task, action in actions)
    return copied / max(1, len(actions))


def require_copy_rate(rate: float, config: WarmStartConfig) -> None:
    """The gate before reinforcement: a planner that cannot copy an unseen name cannot be rewarded for looking it up."""
    if rate < config.min_copy_rate:
        raise TrainingError(
            f"after the warm start the planner copies unseen names at a rate of {rate:.2f}, below {config.min_copy_rate}",
            cause="the warm start was too short or its learning rate too low",
            mend="raise warm_start.steps or warm_start.learning_rate, or lower warm_start.min_copy_rate",
        )
