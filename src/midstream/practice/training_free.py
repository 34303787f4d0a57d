"""Training-Free GRPO: from one batch of tasks and its groups of rollouts to proposed changes of the library.

Source: arXiv 2510.08191. Where Flow-GRPO turns a group's rewards into numbers for a gradient, here a model reads the
rollouts of a group side by side and describes in words what the good ones did that the bad ones did not: the semantic
advantage, as operations on the library.

    rollouts of the batch, the library in their prompts
    -> groups with contrast; the others are counted, or recorded with the reason why they were left out
    -> every rollout summarized -> every group contrasted -> the batch merged

With `truth = "majority"` a rollout's reward for learning is whether it agrees with the most frequent answer of its
group, and no role of the reflector is shown the gold answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from midstream.core.answers import meaning
from midstream.core.errors import PromptTooLongError
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.practice.library import Library
from midstream.practice.operations import Operation, Outcome
from midstream.practice.reflector import Reflector
from midstream.practice.replies import Proposals
from midstream.practice.runner import Runner
from midstream.practice.settings import PracticeConfig
from midstream.rollout import Group, run_concurrently


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """The changes that a batch suggests: `operations`, in a fixed order.

    `groups` are all that were run, unchanged (with `truth = "majority"` too: their rewards are those of the gold
    answer, which learning did not see); empty with `lessons_from = "model"`. `uniform` groups were left out because
    they had no contrast, `broken` ones (by task) for the reason given. `failed` rollouts (by id) ended with an error.
    `left_out` are operations that a role asked for and that go no further, each with the reason. `unreadable` lists the
    replies, or parts of them, that could not be used.
    """

    groups: Sequence[Group]
    operations: Sequence[Operation]
    uniform: int = 0
    broken: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[Outcome] = ()
    unreadable: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lesson:
    """The changes from one task or from the merged batch; `skipped` is "uniform", or why the task's group is broken."""

    operations: Sequence[Operation] = ()
    left_out: Sequence[Outcome] = ()
    unreadable: Sequence[str] = ()
    skipped: str = ""


class TrainingFree:
    """The algorithm. It holds no state: a proposal depends on the tasks, the library and the seed."""

    def __init__(self, *, config: PracticeConfig, runner: Runner, reflector: Reflector) -> None:
        self.config, self.runner, self.reflector = config, runner, reflector

    async def propose(self, step: int, tasks: Sequence[Task], library: Library) -> Proposal:
        """Roll out, leave out groups without contrast, summarize, contrast, merge.

        A prompt that is too long for the model breaks only its group. Any other failure of an engine, after its own
        retries, stops the run, which can be resumed.

        Raises:
            EngineError: an engine failed.
            BudgetError: a limit was reached.
        """
        if self.config.lessons_from == "model":
            groups: list[Group] = []
            lessons = await run_concurrently(self._write(step, task, library) for task in tasks)
        else:
            groups = await self.runner.groups(f"step-{step}", tasks, library, self.config.group_size)
            lessons = await run_concurrently(self._study(step, group, library) for group in groups)
        batch = await self._merge(step, lessons, library)
        skipped = {task.id: lesson.skipped for task, lesson in zip(tasks, lessons, strict=True) if lesson.skipped}
        return Proposal(
            groups=groups,
            operations=batch.operations,
            uniform=list(skipped.values()).count("uniform"),
            broken={task: reason for task, reason in skipped.items() if reason != "uniform"},
            failed={
                trajectory.id: _error(trajectory)
                for group in groups
                for trajectory in group.trajectories
                if not _ended(trajectory)
            },
            left_out=[outcome for lesson in (*lessons, batch) for outcome in lesson.left_out],
            unreadable=[text for lesson in (*lessons, batch) for text in lesson.unreadable],
        )

    async def _write(self, step: int, task: Task, library: Library) -> _Lesson:
        """What the critic proposes for one question without any rollout."""
        try:
            answer = await self.reflector.write(step, task.id, task.question, library)
        except PromptTooLongError as failure:
            return _Lesson(skipped=failure.what)
        return self._limited(answer.value, answer.unreadable)

    async def _study(self, step: int, group: Group, library: Library) -> _Lesson:
        """What one group teaches: summarize every rollout, then contrast them."""
        # A failed rollout says nothing about the lessons, so the others are contrasted without it.
        ended = [trajectory for trajectory in group.trajectories if _ended(trajectory)]
        if len(ended) < min(2, self.config.group_size):
            errors = sorted({_error(trajectory) for trajectory in group.trajectories if not _ended(trajectory)})
            lost = len(group.trajectories) - len(ended)
            return _Lesson(skipped=f"{lost} of {len(group.trajectories)} rollouts failed: {'; '.join(errors)}")
        gold = group.task.answer
        if self.config.truth == "majority":
            gold, judged = None, _by_majority(ended)
            if judged is None:
                return _Lesson(skipped="no answer is more frequent than every other")
            ended = judged
        rewards = {trajectory.reward.value for trajectory in ended if trajectory.reward}
        # Without contrast there is nothing to learn from, as with an advantage of 0.
        if self.config.skip_uniform and len(rewards) == 1:
            return _Lesson(skipped="uniform")
        question = group.task.question
        try:
            answers = await run_concurrently(
                self.reflector.summarize(step, question, trajectory, gold) for trajectory in ended
            )
            lost_replies = [text for answer in answers for text in answer.unreadable]
            summaries = [answer.value for answer in answers]
            if sum(summary is not None for summary in summaries) < min(2, len(summaries)):
                return _Lesson(skipped="fewer than two rollouts could be summarized", unreadable=lost_replies)
            contrasted = Group(task=group.task, trajectories=tuple(ended))
            answer = await self.reflector.contrast(step, contrasted, summaries, library, gold)
        except PromptTooLongError as failure:
            return _Lesson(skipped=failure.what)
        return self._limited(answer.value, [*lost_replies, *answer.unreadable])

    def _limited(self, operations: Sequence[Operation] | None, unreadable: Sequence[str]) -> _Lesson:
        """The first changes that one group may make; a "keep" does not count. Without a reply the group is broken."""
        if operations is None:
            return _Lesson(skipped="the critic gave no reply that could be used", unreadable=unreadable)
        reason = f"beyond the {self.config.changes_per_group} changes of a group"
        kept: list[Operation] = []
        left_out: list[Outcome] = []
        changes = 0
        for operation in operations:
            changes += operation.kind != "keep"
            if operation.kind != "keep" and changes > self.config.changes_per_group:
                left_out.append(Outcome(operation=operation, refused=reason))
            else:
                kept.append(operation)
        return _Lesson(operations=kept, left_out=left_out, unreadable=unreadable)

    async def _merge(self, step: int, lessons: Sequence[_Lesson], library: Library) -> _Lesson:
        """One list for the batch. The merger is asked only where changes come from more than one group.

        Without its answer nothing is lost: the proposals are used as they are, equal ones once.
        """
        proposed = [operation for lesson in lessons for operation in lesson.operations]
        if sum(any(operation.kind != "keep" for operation in lesson.operations) for lesson in lessons) < 2:
            return _Lesson(operations=proposed)
        proposals = Proposals(proposed)  # equal proposals of several groups are one
        try:
            answer = await self.reflector.merge(step, proposals, library)
        except PromptTooLongError as failure:
            return _Lesson(operations=proposals.operations, unreadable=[f"merger: {failure.what}"])
        if answer.value is None:
            return _Lesson(operations=proposals.operations, unreadable=answer.unreadable)
        return _Lesson(operations=answer.value.operations, left_out=answer.value.left_out, unreadable=answer.unreadable)


def _by_majority(trajectories: Sequence[Trajectory]) -> list[Trajectory] | None:
    """The trajectories with agreement as their reward and without their gold answer; None without a clear majority.

    Answers are equal where their words and numbers are. A rollout without an answer has no vote and is wrong.
    """
    meanings = [meaning(trajectory.answer or "") or None for trajectory in trajectories]
    votes = Counter(answer for answer in meanings if answer is not None).most_common(2)
    if not votes or (len(votes) == 2 and votes[0][1] == votes[1][1]):
        return None
    return [
        trajectory.model_copy(update={"reward": Score(value=float(answer == votes[0][0])), "gold": None})
        for trajectory, answer in zip(trajectories, meanings, strict=True)
    ]


def _ended(trajectory: Trajectory) -> bool:
    return trajectory.status == "ok" and trajectory.reward is not None


def _error(trajectory: Trajectory) -> str:
    """Why a rollout failed, on one line."""
    error = trajectory.error
    return f"{error.type}: {error.message.splitlines()[0]}" if error else "no reward"
