"""Reflection: the semantic advantage of Training-Free GRPO (arXiv 2510.08191) as a proposer.

    rollouts of the batch, the lesson set in their prompts
    -> groups with contrast; the others are counted, or recorded with the reason why they were left out
    -> every rollout summarized -> every group contrasted -> the batch merged

With `truth = "majority"` a rollout's reward for learning is whether it agrees with the most frequent answer of its
group, with `"none"` it has none: every group is contrasted, by what its rollouts did. No role of the reflector is shown
the gold answer then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from midstream.components.component import ProposerConfig
from midstream.core.answers import most_frequent
from midstream.core.errors import PromptTooLongError
from midstream.core.trajectory import Score
from midstream.lessons.operations import Operation, OperationOutcome
from midstream.lessons.proposer import Proposal, Work, ended, error_of
from midstream.lessons.replies import Proposals
from midstream.lessons.settings import LessonsConfig
from midstream.rewards.votes import answer_key
from midstream.rollout import Group, run_concurrently


class Reflection:
    """A model reads the rollouts of a group side by side, and says what good ones did that bad ones did not."""

    async def propose(self, work: Work) -> Proposal:
        """Leave out groups without contrast, summarize, contrast, merge.

        A prompt that is too long for the model breaks only its group. Any other `EngineError`, after the engine's own
        retries, and a `BudgetError` stop the run, which can be resumed.
        """
        groups = work.groups or [Group(task=task, trajectories=()) for task in work.tasks]
        of_groups = await run_concurrently(self._study(work, group) for group in groups)
        batch = await self._merge(work, of_groups)
        return Proposal(
            operations=batch.operations,
            uniform=sum(each.uniform for each in of_groups),
            broken={task: why for each in of_groups for task, why in each.broken.items()},
            left_out=[outcome for each in (*of_groups, batch) for outcome in each.left_out],
            unreadable=[text for each in (*of_groups, batch) for text in each.unreadable],
        )

    async def _study(self, work: Work, group: Group) -> Proposal:
        """Learn from one group: summarize every rollout, then contrast them; or write lessons from its question."""
        config, reflector = work.config, work.reflector
        task, gold = group.task.id, group.task.answer if config.truth == "answer" else None
        lost, summaries = list[str](), list[str | None]()
        try:
            if config.lessons_from == "rollouts":
                graded = _graded(group, config)
                if isinstance(graded, Proposal):
                    return graded
                group = graded
                answers = await run_concurrently(
                    reflector.summarize(work.step, group.task.question, trajectory, gold)
                    for trajectory in group.trajectories
                )
                lost = [text for answer in answers for text in answer.flaws]
                summaries = [answer.value for answer in answers]
                if sum(summary is not None for summary in summaries) < min(2, len(summaries)):
                    why = "fewer than two rollouts could be summarized"
                    return Proposal(broken={task: why}, unreadable=lost)
            answer = await reflector.contrast(work.step, group, summaries, work.lesson_set, gold)
        except PromptTooLongError as failure:
            return Proposal(broken={task: failure.what})
        lost += answer.flaws
        if answer.value is None:
            return Proposal(broken={task: "the critic gave no reply that could be used"}, unreadable=lost)
        # A "keep" changes nothing, and does not count.
        counts = accumulate(operation.kind != "keep" for operation in answer.value)
        kept, beyond = list[Operation](), list[OperationOutcome]()
        for operation, count in zip(answer.value, counts, strict=True):
            if operation.kind == "keep" or count <= config.changes_per_group:
                kept.append(operation)
            else:
                reason = f"beyond the {config.changes_per_group} changes of a group"
                beyond.append(OperationOutcome(operation=operation, refused=reason))
        return Proposal(operations=kept, left_out=beyond, unreadable=lost)

    async def _merge(self, work: Work, of_groups: Sequence[Proposal]) -> Proposal:
        """One list for the batch. The merger is asked only where changes come from more than one group.

        Without its answer nothing is lost: the proposals are used as they are, equal ones once.
        """
        proposed = [operation for each in of_groups for operation in each.operations]
        if sum(any(operation.kind != "keep" for operation in each.operations) for each in of_groups) < 2:
            return Proposal(operations=proposed)
        # Equal proposals of several groups are one.
        proposals = Proposals(proposed)
        try:
            answer = await work.reflector.merge(work.step, proposals, work.lesson_set)
        except PromptTooLongError as failure:
            return Proposal(operations=proposals.operations, unreadable=[f"merger: {failure.what}"])
        if answer.value is None:
            return Proposal(operations=proposals.operations, unreadable=answer.flaws)
        return Proposal(operations=answer.value.operations, left_out=answer.value.left_out, unreadable=answer.flaws)


class ReflectionConfig(ProposerConfig):
    """Lessons from groups of rollouts, by the reflector's three roles."""

    searches = False
    component = Reflection


def _graded(group: Group, config: LessonsConfig) -> Group | Proposal:
    """The group's rollouts that ended, graded as `truth` says, without gold answers; or that nothing is learned.

    A majority is of equal answers (`rewards.votes.answer_key`). A rollout without an answer has no vote and is
    wrong.
    """
    # A failed rollout says nothing about the lessons, so the others are contrasted without it.
    done = [trajectory for trajectory in group.trajectories if ended(trajectory)]
    if len(done) < min(2, config.group_size):
        errors = sorted({error_of(trajectory) for trajectory in group.trajectories if not ended(trajectory)})
        lost = len(group.trajectories) - len(done)
        why = f"{lost} of {len(group.trajectories)} rollouts failed: {'; '.join(errors)}"
        return Proposal(broken={group.task.id: why})
    if config.truth != "answer":
        scores: list[Score | None] = [None] * len(done)
        if config.truth == "majority":
            keys = [answer_key(trajectory.question, trajectory.answer) for trajectory in done]
            first, *tied = most_frequent(keys) or [None]
            if first is None or tied:
                return Proposal(broken={group.task.id: "no answer is more frequent than every other"})
            scores = [Score(value=float(key == first)) for key in keys]
        done = [
            trajectory.model_copy(update={"reward": score, "gold": None})
            for trajectory, score in zip(done, scores, strict=True)
        ]
    rewards = {trajectory.reward.value for trajectory in done if trajectory.reward}
    # Without contrast there is nothing to learn from, as with an advantage of 0.
    if config.skip_uniform and len(rewards) == 1:
        return Proposal(uniform=1)
    return Group(task=group.task, trajectories=tuple(done))
