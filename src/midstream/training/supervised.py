"""Supervised learning on transcripts: the warm start before reinforcement, and the controls it is compared with."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from midstream.agents.interleaved import InterleavedLoop
from midstream.components.component import Component
from midstream.core.errors import TrainingError
from midstream.core.metrics import StepMetrics
from midstream.core.seeds import derive_seed
from midstream.core.source import TaskSource
from midstream.core.task import Task
from midstream.evaluation.run import MakeEnvironment
from midstream.evaluation.settings import SetConfig
from midstream.rollout import Environment, rollout
from midstream.runs.budget import require_within_budget
from midstream.training.flow_grpo import StepOutcome
from midstream.training.protocols import Learner, Row, Student, TrainableWorld
from midstream.training.settings import ImitationConfig, SupervisedConfig, TrainingConfig, WarmStartConfig
from midstream.training.transcripts import (
    row_of_transcript,
    rows_of_file,
    rows_of_replies,
    supervised_row,
    transcript_of,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Learned = Callable[[Sequence[Task]], None]  # records tasks that are learned from
MAX_BROKEN = 0.01  # share of transcripts
COPYING_FIRST = 48  # updates, half of which are on random tokens said twice where the recipe has such
COPIED_ROWS, COPIED_TOKENS = 32, 24


class Transcripts:
    """Rows of a policy's transcripts in batches of `similar` length, each row once an epoch.

    Batch i is a function of (rows, settings, seed, i) alone, so a resumed run sees the same ones.
    """

    def __init__(
        self, rows: Sequence[Row], batch_size: int, seed: int, similar: Literal["prompts", "rows"] = "prompts"
    ) -> None:
        if not rows:
            raise TrainingError(
                "no transcript is left to learn from: the policy succeeded on none of its tasks",
                code="no-transcripts",
                fix="raise `transcripts`, or set `successes_only = false`",
            )
        self.rows, self.batch_size, self.seed, self.similar = rows, batch_size, seed, similar
        self.batches_per_epoch = -(-len(rows) // batch_size)
        self._epoch: tuple[int, list[list[Row]]] = (-1, [])

    def batch(self, index: int) -> list[Row]:
        """The batch at place `index`, counted from 0 over all epochs."""
        epoch, place = divmod(index, self.batches_per_epoch)
        if self._epoch[0] != epoch:
            # Shuffle, sort within stretches of eight batches by length, cut, shuffle the batches.
            rng, size = random.Random(derive_seed(self.seed, "epoch", epoch)), self.batch_size
            order = list(self.rows)
            rng.shuffle(order)
            batches = []
            for start in range(0, len(order), 8 * size):
                stretch = order[start : start + 8 * size]
                stretch.sort(key=lambda row: row.length if self.similar == "rows" else len(row.prompt_ids))
                batches += [stretch[i : i + size] for i in range(0, len(stretch), size)]
            rng.shuffle(batches)
            self._epoch = (epoch, batches)
        return self._epoch[1][place]


async def collect(
    environment: Environment,
    source: TaskSource,
    student: Student,
    config: SupervisedConfig,
    seed: int,
    report: Callable[[str], None],
    lessons: float = 0.0,
    roles: Collection[str] = ("planner",),
    learned: Learned = lambda tasks: None,
) -> list[Row]:
    """Run the environment's policy on training tasks and make rows of unbroken runs: of each action, or each stream.

    `student` is the engine of the weights that are to learn: prompts are encoded as it would encode them. `lessons` is
    the share of runs with known lessons in their prompts, `roles` the modules whose replies are learned; `learned`
    receives the tasks, some hundreds at a time.
    """
    agent = environment.agent
    template = agent.template if isinstance(agent, InterleavedLoop) else None
    world = source if lessons > 0 and isinstance(source, TrainableWorld) else None
    successes = isinstance(config, ImitationConfig) and config.successes_only
    rows: list[Row] = []
    broken = 0
    for start in range(0, config.transcripts, config.at_once):
        size, drawn = min(config.at_once, config.transcripts - start), derive_seed(seed, "transcripts", start)
        tasks = source.sample("train", size, drawn)
        learned(tasks)
        report(f"collecting transcripts {start}/{config.transcripts}")
        groups = await rollout(
            environment,
            tasks,
            seed=drawn,
            lessons=world.lessons([task.id for task in tasks], lessons, seed) if world else None,
        )
        require_within_budget([group.trajectories[0] for group in groups])
        for group in groups:
            trajectory = group.trajectories[0]
            broken += trajectory.status == "error"
            success = trajectory.reward is not None and trajectory.reward.value == 1
            if trajectory.status == "ok" and (success or not successes):
                if template is None:
                    rows += rows_of_replies(trajectory, student, roles)
                elif transcript := transcript_of(trajectory, template):
                    # It is None where the policy wrote nothing.
                    rows.append(row_of_transcript(transcript, student.codec, trajectory.id))
    if broken > config.transcripts * MAX_BROKEN:
        raise TrainingError(
            f"{broken} of {config.transcripts} transcripts ended in an error of a tool or its sandbox",
            code="no-transcripts",
            fix="fix the tool; `midstream eval` of the recipe names its errors",
        )
    return rows


def learning_rate(config: WarmStartConfig, step: int) -> float:
    """Linear rise, `hold`, then linear fall to `final_share` of the peak; steps count from 1."""
    rise = min(1.0, step / config.warmup_steps)
    fall = min(1.0, (1 - (step - 1) / max(1, config.steps)) / (1 - config.hold))
    return config.learning_rate * rise * max(config.final_share, fall)


def copying_rows(tokenizer: PreTrainedTokenizerBase, seed: int) -> list[Row]:
    """Rows of random tokens said twice, without marks; the second time is learned, but for its first token."""
    rng = random.Random(seed)
    ids = [token for token in range(len(tokenizer)) if token not in tokenizer.added_tokens_decoder]
    runs = [tuple(rng.choices(ids, k=COPIED_TOKENS)) for _ in range(COPIED_ROWS)]
    return [supervised_row([*run, run[0]], run[1:], f"copied-{place}") for place, run in enumerate(runs)]


async def warm_start(
    config: WarmStartConfig,
    *,
    learner: Learner,
    student: Student,
    source: TaskSource,
    make_environment: MakeEnvironment,
    teacher: Component | None,
    validation: Sequence[Task],
    seed: int,
    report: Callable[[str], None],
    learned: Learned,
) -> None:
    """Learn from the file's transcripts, or from the teacher's; then the policy is the reference policy.

    A world's teacher shows the action language and copying; the plan itself is left to reinforcement. The world then
    checks the model on the `validation` tasks, which may raise `TrainingError`.
    """
    seed = derive_seed("warm start", seed)
    if config.file is not None:
        rows = rows_of_file(config.file, student)
    else:
        wrapped = SetConfig(name="warm start", wrappers=config.wrappers) if config.wrappers else None
        environment = make_environment(planner=teacher, chosen=wrapped)
        # A teacher that answers as an engine shows the replies of every module that asks the model.
        asked = environment.engines.get("planner")
        roles = {"planner", *(role for role, engine in environment.engines.items() if engine is asked)}
        rows = await collect(environment, source, student, config, seed, report, config.lessons, roles, learned)
    transcripts = Transcripts(rows, config.batch_size, derive_seed(seed, "batches"), config.similar)
    places = count()  # of batches of transcripts
    for step in range(1, config.steps + 1):
        learner.before_step(derive_seed(seed, "warm start", step))
        share = max(config.copying, 0.5) if config.copying and step <= COPYING_FIRST else config.copying
        if copies := bool(share) and random.Random(derive_seed(seed, "copying", step)).random() < share:
            batch, prompt_weight = copying_rows(student.tokenizer, derive_seed(seed, "copied", step)), 0.0
        else:
            batch, prompt_weight = transcripts.batch(next(places)), config.prompt_weight
        loss = learner.supervised_step(batch, learning_rate(config, step), prompt_weight, shared=config.shared_prefixes)
        if step % 10 == 0:
            report(f"step {step}/{config.steps}, loss {loss:.2f}{' of copying' if copies else ''}")
    learner.rebase()
    if config.file is None and isinstance(source, TrainableWorld):
        report(await source.check_warm_start(make_environment(), validation, config.min_copy_rate, seed))


@dataclass(kw_only=True)
class SupervisedTraining:
    """As many supervised updates as reinforcement makes, on the transcripts of the environment's policy.

    With the world's own teacher it is a control; with a stronger planner it is distillation. One step is `minibatches`
    updates at `supervised.learning_rate`, constant. Their batches depend on the seed alone, so no checkpoint holds any.
    """

    config: TrainingConfig
    learner: Learner
    environment: Environment
    source: TaskSource
    student: Student
    seed: int
    report: Callable[[str], None]
    learned: Learned
    _transcripts: Transcripts | None = field(default=None, init=False)

    async def step(self, step: int) -> StepOutcome:
        """Make the step's updates; there are no trajectories."""
        config = self.config.supervised
        if self._transcripts is None:
            seed = derive_seed(self.seed, "supervised")
            rows = await collect(
                self.environment, self.source, self.student, config, seed, self.report, learned=self.learned
            )
            self._transcripts = Transcripts(rows, config.batch_size, seed)
        losses = []
        for update in range((step - 1) * self.config.minibatches, step * self.config.minibatches):
            self.learner.before_step(derive_seed(self.seed, "redraw", update))
            losses.append(self.learner.supervised_step(self._transcripts.batch(update), config.learning_rate))
        return StepOutcome(
            metrics=StepMetrics(
                step=step,
                policy_version=step - 1,
                reward_mean=0.0,
                loss=fmean(losses),
                learning_rate=config.learning_rate,
            )
        )
