"""Training-Free GRPO: one batch of tasks, its groups of rollouts, and the changes that they suggest.

Source: arXiv 2510.08191. Where Flow-GRPO turns a group's rewards into numbers for a gradient, here a model reads the
rollouts of a group side by side and says in words what the good ones did that the bad ones did not: the semantic
advantage, as operations on the library.

    rollouts of the batch, the library in their prompts
    -> groups with contrast; the others are counted, or named with the reason why they were left out
    -> every rollout summarised -> every group contrasted -> the batch merged

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
from midstream.rollout import Group, together


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """What a batch suggests: `operations`, in a fixed order.

    `groups` are all that were played, as they ended (with `truth = "majority"` too: their rewards are those of the gold
    answer, which learning did not see); none with `lessons_from = "model"`. `uniform` groups were left out because they
    had no contrast, `broken` ones (by task) for the reason given. `failed` rollouts (by id) ended with an error.
    `left_out` are operations that a role asked for and that go no further, each with the reason. `unreadable` says
    which replies, or parts of them, could not be used.
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
    """What one task taught; `skipped` is "uniform", or the reason why its group was broken."""

    operations: Sequence[Operation] = ()
    left_out: Sequence[Outcome] = ()
    unreadable: Sequence[str] = ()
    skipped: str = ""


_UNIFORM = _Lesson(skipped="uniform")


class TrainingFree:
    """The algorithm. It holds no state: a proposal depends on the tasks, the library and the seed."""

    def __init__(self, *, config: PracticeConfig, runner: Runner, reflector: Reflector) -> None:
        self.config, self.runner, self.reflector = config, runner, reflector

    async def propose(self, step: int, tasks: Sequence[Task], library: Library) -> Proposal:
        """Roll out, leave groups without contrast out, summarise, contrast, merge.

        Raises what an engine raises once its own retries are spent: the run stops, and goes on later. Only a prompt
        that is too long for the model breaks no more than its group.
        """
        if self.config.lessons_from == "model":
            groups: list[Group] = []
            taught = await together(self._written(step, task, library) for task in tasks)
        else:
            groups = await self.runner.groups(f"step-{step}", tasks, library, self.config.group_size)
            taught = await together(self._studied(step, group, library) for group in groups)
        batch = await self._merged(step, taught, library)
        skipped = {task.id: one.skipped for task, one in zip(tasks, taught, strict=True) if one.skipped}
        return Proposal(
            groups=groups,
            operations=batch.operations,
            uniform=list(skipped.values()).count("uniform"),
            broken={task: reason for task, reason in skipped.items() if reason != "uniform"},
            failed={one.id: _error(one) for group in groups for one in group.trajectories if not _ended(one)},
            left_out=[out for one in taught for out in one.left_out] + list(batch.left_out),
            unreadable=[text for one in (*taught, batch) for text in one.unreadable],
        )

    async def _written(self, step: int, task: Task, library: Library) -> _Lesson:
        """What the critic proposes for one question without any rollout."""
        try:
            said = await self.reflector.write(step, task.id, task.question, library)
        except PromptTooLongError as failure:
            return _Lesson(skipped=failure.what)
        return self._limited(said.value, said.unreadable)

    async def _studied(self, step: int, group: Group, library: Library) -> _Lesson:
        """What one group teaches, if it can teach anything."""
        ended = [one for one in group.trajectories if _ended(one)]
        if len(ended) < min(2, self.config.group_size):
            errors = sorted({_error(one) for one in group.trajectories if not _ended(one)})
            lost = len(group.trajectories) - len(ended)
            return _Lesson(skipped=f"{lost} of {len(group.trajectories)} rollouts failed: {'; '.join(errors)}")
        answer = group.task.answer
        if self.config.truth == "majority":
            answer, judged = None, _by_majority(ended)
            if judged is None:
                return _Lesson(skipped="no answer is more frequent than every other")
            ended = judged
        if self.config.skip_uniform and len({_value(one) for one in ended}) == 1:
            return _UNIFORM
        try:
            return await self._contrasted(step, Group(task=group.task, trajectories=tuple(ended)), library, answer)
        except PromptTooLongError as failure:
            return _Lesson(skipped=failure.what)

    async def _contrasted(self, step: int, group: Group, library: Library, answer: str | None) -> _Lesson:
        """Summarise every rollout, then set them side by side."""
        question = group.task.question
        told = await together(self.reflector.summarise(step, question, one, answer) for one in group.trajectories)
        lost = [text for one in told for text in one.unreadable]
        summaries = [one.value for one in told]
        if sum(one is not None for one in summaries) < min(2, len(summaries)):
            return _Lesson(skipped="fewer than two rollouts could be summarised", unreadable=lost)
        said = await self.reflector.contrast(step, group, summaries, library, answer)
        return self._limited(said.value, [*lost, *said.unreadable])

    def _limited(self, operations: Sequence[Operation] | None, unreadable: Sequence[str]) -> _Lesson:
        """The first changes that one group may make; "keep" is none. Without a reply the group is broken."""
        if operations is None:
            return _Lesson(skipped="the critic gave no reply that could be used", unreadable=unreadable)
        changes = [one for one in operations if one.kind != "keep"]
        beyond = changes[self.config.changes_per_group :]
        reason = f"beyond the {self.config.changes_per_group} changes of a group"
        return _Lesson(
            operations=[one for one in operations if not any(one is other for other in beyond)],
            left_out=[Outcome(operation=one, refused=reason) for one in beyond],
            unreadable=unreadable,
        )

    async def _merged(self, step: int, taught: Sequence[_Lesson], library: Library) -> _Lesson:
        """One list for the batch. The merger is only asked where changes come from more than one group.

        Without its answer nothing is lost: the proposals go on as they are, equal ones once.
        """
        proposed = [operation for one in taught for operation in one.operations]
        if sum(any(change.kind != "keep" for change in one.operations) for one in taught) < 2:
            return _Lesson(operations=proposed)
        proposals = Proposals(proposed)
        try:
            said = await self.reflector.merge(step, proposals, library)
        except PromptTooLongError as failure:
            return _Lesson(operations=proposals.operations, unreadable=[f"merger: {failure.what}"])
        if said.value is None:
            return _Lesson(operations=proposals.operations, unreadable=said.unreadable)
        return _Lesson(operations=said.value.operations, left_out=said.value.left_out, unreadable=said.unreadable)


def _by_majority(trajectories: Sequence[Trajectory]) -> list[Trajectory] | None:
    """The trajectories with agreement as their reward and without their gold answer; None without a clear majority.

    Answers are the same where their words and numbers are. A rollout without an answer has no vote and is wrong.
    """
    meanings = [meaning(one.answer or "") or None for one in trajectories]
    votes = Counter(one for one in meanings if one is not None).most_common(2)
    if not votes or (len(votes) == 2 and votes[0][1] == votes[1][1]):
        return None
    return [
        one.model_copy(update={"reward": Score(value=float(said == votes[0][0])), "gold": None})
        for one, said in zip(trajectories, meanings, strict=True)
    ]


def _ended(one: Trajectory) -> bool:
    return one.status == "ok" and one.reward is not None


def _value(one: Trajectory) -> float | None:
    return one.reward.value if one.reward else None


def _error(one: Trajectory) -> str:
    """Why a rollout failed, on one line."""
    return f"{one.error.type}: {one.error.message.splitlines()[0]}" if one.error else "no reward"
