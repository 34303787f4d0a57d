"""One rollout, used twice: the same trajectories teach a set of lessons and the planner's weights.

    python examples/one_run_two_ways.py

A tiny planner answers questions about a made-up world, each several times. What it did, and whether the answer was
right, is then used in two independent ways:

    lessons   what good trajectories did more often than bad ones becomes a lesson         Training-Free GRPO, lessons/
    weights   every turn of a good trajectory becomes more likely, of a bad one less       Flow-GRPO, training/

No model writes the lessons: a program compares the rollouts, and the sentences that it knows are those that the planner
was taught to follow. One update of each shows how the parts fit together; results take whole runs,
`midstream train lessons-tiny` and `midstream train flow-grpo-tiny-lessons`, and `midstream compare` of them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import LessonSet, render_modules
from midstream.lessons.reflector import ROLES
from midstream.lessons.update import LessonLearner
from midstream.recipe.build import Build
from midstream.recipe.check import teacher
from midstream.recipe.schema import load_recipe
from midstream.rollout import rollout
from midstream.training.losses import PolicyLoss
from midstream.training.rows import build_rows
from midstream.training.supervised import warm_start

SMALL = (
    "warm_start.min_copy_rate=0",  # a planner that is ready in half a minute, and one update of everything
    'tasks.families=["lookup","arith","scale"]',
    "engines.policy.hidden_size=64",
    "warm_start={transcripts=1500,steps=220,learning_rate=5e-3,policy={sense=0.4}}",
    "lessons={tasks=40,epochs=1,batch_size=40,group_size=8}",
)
TESTED, SEED = 200, 0


@dataclass
class Bench:
    """What both ways share, built once from the recipe: world, agent, tools, planner, learner."""

    build: Build

    def __post_init__(self) -> None:
        self.source, self.learner = self.build.source, self.build.policy.learner
        self.environment = self.build.environment()

    async def warm_up(self) -> None:
        """Teach the planner the action language, and to follow lessons, from a scripted planner's transcripts."""
        config = self.build.recipe.warm_start
        assert config is not None
        await warm_start(
            config,
            learner=self.learner,
            student=self.build.policy.student(),
            source=self.source,
            make_environment=self.build.environment,
            teacher=teacher(self.build.recipe),
            validation=self.build.set_tasks(self.build.recipe.evaluation.validation),
            seed=SEED,
            report=lambda text: None,
            learned=lambda tasks: None,
        )

    async def success(self, lesson_set: LessonSet) -> float:
        """The share of unseen questions, about unseen places, that is answered right with lessons in the prompts."""
        tests = self.source.fixed("test", seed=SEED, count=TESTED)
        lessons = dict.fromkeys((task.id for task in tests), render_modules(lesson_set))
        groups = await rollout(self.environment, tests, seed=SEED, lessons=lessons)
        rewards = [trajectory.reward for group in groups for trajectory in group.trajectories]
        return fmean(reward.value for reward in rewards if reward)

    def fingerprint(self) -> str:
        """A digest of all weights."""
        state = self.learner.model.state_dict()
        return hashlib.sha256(b"".join(state[name].numpy().tobytes() for name in sorted(state))).hexdigest()[:12]


async def learn_lessons(bench: Bench, tasks: Sequence[Task]) -> tuple[LessonSet, Sequence[Trajectory]]:
    """Context: roll out, contrast each group in words, merge, and let the gate test the result."""
    recipe = bench.build.recipe
    assert recipe.lessons is not None
    lessons = LessonLearner(
        config=recipe.lessons,
        tasks=tasks,
        validation=bench.source.fixed("validation", seed=SEED, count=recipe.lessons.gate.tasks),
        environment=bench.environment,
        engines={role: bench.build.engine(recipe.lessons.reflector.engine) for role in ROLES},
        ledger=Ledger(),
        seed=SEED,
    )
    updated = await lessons.update(1, LessonSet(), (), 1)
    record, played = updated.record, updated.trajectories
    print(f"rollout   {record.groups} groups, {len(played)} trajectories, mean reward {record.mean_reward:.2f}")
    print(f"lessons   {record.groups - record.uniform} groups with contrast -> {len(record.changes)} changes")
    for change in record.changes:
        operation = change.operation
        print(f"          {change.fate:8}  {operation.text}  (from {len(operation.origin.tasks)} groups)")
    return updated.lesson_set, played


def learn_weights(bench: Bench, played: Sequence[Trajectory]) -> None:
    """Weights: every planner turn is a row with its trajectory's advantage; one clipped step with a KL term."""
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in played:
        groups.setdefault(trajectory.task_id, []).append(trajectory)
    batch = build_rows(list(groups.values()))
    bench.learner.forward_backward(batch.rows, PolicyLoss())
    norm = bench.learner.optimizer_step(6e-4)
    up, down = (sum(row.advantage * sign > 0 for row in batch.rows) for sign in (1, -1))
    print(f"weights   {batch.groups - batch.groups_uniform} groups with contrast -> {len(batch.rows)} rows, of which")
    print(f"          {up} become likelier and {down} less likely, gradient norm {norm:.2f}")


async def main() -> None:
    """Play once, learn twice, test all four combinations on the same questions."""
    bench = Bench(Build(load_recipe("lessons-tiny", SMALL)))
    try:
        await bench.warm_up()
        frozen, empty = bench.fingerprint(), LessonSet()
        lesson_set, played = await learn_lessons(bench, bench.source.fixed("train", seed=SEED, count=40))
        success = {"frozen": await bench.success(empty), "lessons": await bench.success(lesson_set)}
        assert bench.fingerprint() == frozen, "lessons change no weight"
        print(f"          weights as they were: {frozen}")
        learn_weights(bench, played)
        print(f"          weights now: {bench.fingerprint()}")
        success |= {"weights": await bench.success(empty), "both": await bench.success(lesson_set)}
        print("success   " + ", ".join(f"{name} {value:.2f}" for name, value in success.items()))
    finally:
        await bench.build.close()


if __name__ == "__main__":
    asyncio.run(main())
