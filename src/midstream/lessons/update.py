"""One update of the lesson set by Training-Free GRPO: batch, rollouts, semantic advantage, gate, lesson set.

Source: arXiv 2510.08191. Where Flow-GRPO turns a group's rewards into numbers for a gradient, here a model reads the
rollouts of a group side by side and describes in words what the good ones did that the bad ones did not: the semantic
advantage, as operations on the lesson set (`LessonLearner.propose`).

    rollouts of the batch, the lesson set in their prompts
    -> groups with contrast; the others are counted, or recorded with the reason why they were left out
    -> every rollout summarized -> every group contrasted -> the batch merged
    -> sound operations -> the gate -> the lesson set

With `truth = "majority"` a rollout's reward for learning is whether it agrees with the most frequent answer of its
group, with `"none"` it has none: every group is contrasted, by what its rollouts did. No role of the reflector is shown
the gold answer then.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean

from midstream.core.answers import most_frequent
from midstream.core.engine import Engine
from midstream.core.errors import InfrastructureError, PromptTooLongError
from midstream.core.metrics import Tally
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.tool import RunProgress
from midstream.core.trajectory import Score, Trajectory
from midstream.lessons.commit import MadeUpdate, UpdateRecord
from midstream.lessons.feedback import LessonFeedback
from midstream.lessons.gate import ChangeRecord, Decision, decide
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import LessonSet, measured, proven, render_modules
from midstream.lessons.operations import Operation, OperationOutcome, Rules, applied, screened
from midstream.lessons.reflector import Reflector
from midstream.lessons.replies import Proposals
from midstream.lessons.runner import Match, Runner
from midstream.lessons.settings import LESSON_TOKENS, LessonsConfig
from midstream.lessons.similarity import leak_guard
from midstream.rewards.votes import answer_key
from midstream.rollout import Environment, Group, run_concurrently
from midstream.runs.budget import Budget, BudgetConfig
from midstream.runs.journal import Report


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """The changes that a batch suggests: `operations`, in a fixed order.

    `groups` are all that were run, unchanged (with any `truth`: their rewards compare with the gold answer, which
    learning may not have seen); empty with `lessons_from = "model"`. `uniform` groups were left out because
    they had no contrast, `broken` ones (by task) for the reason given. `failed` rollouts (by id) ended with an error.
    `left_out` are operations that a role asked for and that go no further, each with the reason. `unreadable` lists the
    replies, or parts of them, that could not be used.
    """

    groups: Sequence[Group]
    operations: Sequence[Operation]
    uniform: int
    broken: dict[str, str]
    failed: dict[str, str]
    left_out: Sequence[OperationOutcome]
    unreadable: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Suggestion:
    """The changes from one task or from the merged batch; `skipped` is "uniform", or why the task's group is broken."""

    operations: Sequence[Operation] = ()
    left_out: Sequence[OperationOutcome] = ()
    unreadable: Sequence[str] = ()
    skipped: str = ""


class LessonLearner:
    """The algorithm with its gate. It holds no state of a run: an update is a function of step, lesson set and pending.

    `tasks` are learned from in `environment`; the gate tests on `validation` in `gate_environment`.
    `engines` are by the reflector's roles. An accepted set is proven for the agent `identity`. `budget` counts what
    is used, `report` gets the progress. `feedback` may refuse proposals.
    """

    def __init__(
        self,
        *,
        config: LessonsConfig,
        tasks: Sequence[Task],
        validation: Sequence[Task],
        environment: Environment,
        gate_environment: Environment | None = None,
        engines: Mapping[str, Engine],
        ledger: Ledger,
        feedback: LessonFeedback | None = None,
        seed: int,
        identity: str = "",
        budget: Budget | None = None,
        report: Report = lambda text: None,
    ) -> None:
        self.config, self.tasks, self.validation, self.seed = config, tasks, validation, seed
        self.identity, self.budget, self.ledger = identity, budget or Budget(BudgetConfig()), ledger
        self.feedback = feedback
        # A lesson may give away no answer of a task that is learned from or tested on.
        self._leak = [leak_guard([*tasks, *validation])] if config.limits.leak_guard else []
        self.runner = Runner(environment, ledger, derive_seed(seed, "rollouts"), config.shuffle_rewards, report)
        self.gate_runner = replace(self.runner, environment=gate_environment or environment)
        label = "optimiser"  # of seeds, as in runs that exist  # words: allow
        self.reflector = Reflector(config, engines, ledger, derive_seed(seed, label))

    async def update(self, step: int, lesson_set: LessonSet, pending: Sequence[Operation], version: int) -> MadeUpdate:
        """Make update number `step`, from 1; `version` is the number that its lesson set gets if it changes.

        Raises:
            InfrastructureError: every rollout of the batch, or of a block of the gate, failed.
            BudgetError: a limit was reached.
        """
        began, self.budget.phase = time.monotonic(), "learning"
        epoch, tasks = self.batch(step)
        # Before the rollouts: feedback that comes meanwhile is for the next update.
        guards = [*self._leak, *([self.feedback.guard()] if self.feedback else [])]
        proposal = await self.propose(step, tasks, lesson_set)
        trajectories = [trajectory for group in proposal.groups for trajectory in group.trajectories]
        errors = [trajectory.error for trajectory in trajectories if trajectory.error]
        # Where every rollout failed, nothing can be learned: the run stops until the cause is repaired.
        if errors and len(errors) == len(trajectories):
            what = f"all {len(errors)} rollouts of the batch ended in errors; the first:\n{errors[0].message}"
            raise InfrastructureError(what, code="all-rollouts-failed", fix="fix that")
        proposed = [*pending, *proposal.operations]
        rules = Rules(
            modules=self.config.modules,
            max_tokens=self.config.limits.max_tokens,
            lesson_tokens=LESSON_TOKENS,
            repeats=False,
            guards=guards,
            subsets=self.config.gate.enabled,
        )
        moved, outcomes = screened(lesson_set, proposed, rules, pending=len(pending))
        sound = [outcome.operation for outcome in outcomes if not outcome.refused]
        changes = [operation for operation in sound if operation.kind != "keep"]
        used = Counter({lesson.id: len(trajectories) for lesson in lesson_set.rendered})
        after, decision = await self._gated(step, lesson_set, moved, changes, used)
        ended = [trajectory for trajectory in trajectories if trajectory.status == "ok"]
        rewards = [trajectory.reward.value for trajectory in ended if trajectory.reward is not None]
        no_longer_sound = [outcome for outcome in outcomes[: len(pending)] if outcome.refused]
        return MadeUpdate(
            before=version - 1,
            lesson_set=after,
            operations=tuple(change.operation for change in decision.changes if change.fate == "accepted"),
            record=UpdateRecord(
                step=step,
                epoch=epoch,
                tasks=tuple(task.id for task in tasks),
                groups=len(proposal.groups),
                uniform=proposal.uniform,
                broken=proposal.broken,
                failed=proposal.failed,
                mean_reward=fmean(rewards) if rewards else 0.0,
                turns_mean=fmean(len(trajectory.turns) for trajectory in ended) if ended else 0.0,
                tool_use=Tally(trajectories).tools(),
                proposed=(*outcomes[len(pending) :], *proposal.left_out, *no_longer_sound),
                changes=decision.changes,
                tests=decision.tests,
                bisect_pairs=decision.bisect_pairs,
                bisect_left_out=decision.bisect_left_out,
                unreadable=tuple(proposal.unreadable),
                version=version if after != lesson_set else version - 1,
                lessons=len(after.rendered),
                spent=self.budget.spent(),
            ),
            duration_s=time.monotonic() - began,
            trajectories=tuple(trajectories),
        )

    def batch(self, step: int) -> tuple[int, list[Task]]:
        """The epoch (from 1) and the tasks of an update: every task once an epoch, in another order each time."""
        per_epoch = self.config.updates // self.config.epochs
        epoch, number = divmod(step - 1, per_epoch)
        order = list(self.tasks)
        random.Random(derive_seed(self.seed, "epoch", epoch)).shuffle(order)
        size = self.config.batch_size
        return epoch + 1, order[number * size : (number + 1) * size]

    async def _gated(
        self,
        step: int,
        before: LessonSet,
        moved: LessonSet,
        changes: Sequence[Operation],
        used: Counter[str],
    ) -> tuple[LessonSet, Decision]:
        """The gate's decision on `changes` of `moved`, and the lesson set after it.

        That has the counts (`used`, to which the gate's rollouts are added), the measured effects, and the agent that
        it is proven for. `moved` is the set `before` with the new lessons' numbers taken.
        """
        config = self.config.gate

        async def play(name: str, matches: Sequence[Match]) -> list[tuple[float, float] | None]:
            for match in matches:
                used.update(lesson.id for side in (match.first, match.other) for lesson in side.rendered)
            return await self.gate_runner.pairs(f"gate-{step}-{name}", matches)

        if config.enabled:
            self.budget.phase = "gate"
            updates, seed = self.config.updates, derive_seed(self.seed, "gate", step)
            decision = await decide(
                moved, changes, tasks=self.validation, play=play, config=config, updates=updates, seed=seed
            )
        else:
            # As in the paper, every sound change is accepted.
            records = tuple(ChangeRecord(operation=change, fate="accepted") for change in changes)
            decision = Decision(lesson_set=applied(moved, changes), changes=records, tests=())
        effects = {
            change.operation.id: change.effect
            for change in decision.changes
            if change.effect and change.fate == "accepted" and change.operation.kind in ("add", "modify")
        }
        after, proven_for = measured(decision.lesson_set, used, effects), before.proven_for
        if render_modules(after) != render_modules(before):
            # The gate has tested the change only, so the lesson set before it must have been proven, or empty.
            sound = not render_modules(before) or proven_for == self.identity
            proven_for = self.identity if config.enabled and sound else ""
        return proven(after, proven_for), decision

    # --- what a batch suggests ---

    async def propose(self, step: int, tasks: Sequence[Task], lesson_set: LessonSet) -> Proposal:
        """Roll out, leave out groups without contrast, summarize, contrast, merge.

        A prompt that is too long for the model breaks only its group. Any other `EngineError`, after the engine's own
        retries, and a `BudgetError` stop the run, which can be resumed.
        """
        groups, studied = list[Group](), [Group(task=task, trajectories=()) for task in tasks]
        if self.config.lessons_from == "rollouts":
            # Simulated and degraded tools follow the progress; the gate has none.
            progress = RunProgress(step=step, steps=self.config.updates)
            runner = replace(self.runner, environment=replace(self.runner.environment, progress=progress))
            groups = studied = await runner.groups(f"step-{step}", tasks, lesson_set, self.config.group_size)
        suggestions = await run_concurrently(self._study(step, group, lesson_set) for group in studied)
        batch = await self._merge(step, suggestions, lesson_set)
        skipped = {task.id: each.skipped for task, each in zip(tasks, suggestions, strict=True) if each.skipped}
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
            left_out=[outcome for each in (*suggestions, batch) for outcome in each.left_out],
            unreadable=[text for each in (*suggestions, batch) for text in each.unreadable],
        )

    async def _study(self, step: int, group: Group, lesson_set: LessonSet) -> _Suggestion:
        """Learn from one group: summarize every rollout, then contrast them; or write lessons from its question."""
        config, gold = self.config, group.task.answer if self.config.truth == "answer" else None
        lost, summaries = list[str](), list[str | None]()
        try:
            if config.lessons_from == "rollouts":
                graded = self._graded(group)
                if isinstance(graded, str):
                    return _Suggestion(skipped=graded)
                group = graded
                answers = await run_concurrently(
                    self.reflector.summarize(step, group.task.question, trajectory, gold)
                    for trajectory in group.trajectories
                )
                lost = [text for answer in answers for text in answer.flaws]
                summaries = [answer.value for answer in answers]
                if sum(summary is not None for summary in summaries) < min(2, len(summaries)):
                    return _Suggestion(skipped="fewer than two rollouts could be summarized", unreadable=lost)
            answer = await self.reflector.contrast(step, group, summaries, lesson_set, gold)
        except PromptTooLongError as failure:
            return _Suggestion(skipped=failure.what)
        lost += answer.flaws
        if answer.value is None:
            return _Suggestion(skipped="the critic gave no reply that could be used", unreadable=lost)
        # A "keep" changes nothing, and does not count.
        counts = accumulate(operation.kind != "keep" for operation in answer.value)
        kept, beyond = list[Operation](), list[OperationOutcome]()
        for operation, count in zip(answer.value, counts, strict=True):
            if operation.kind == "keep" or count <= config.changes_per_group:
                kept.append(operation)
            else:
                reason = f"beyond the {config.changes_per_group} changes of a group"
                beyond.append(OperationOutcome(operation=operation, refused=reason))
        return _Suggestion(operations=kept, left_out=beyond, unreadable=lost)

    def _graded(self, group: Group) -> Group | str:
        """The group's rollouts that ended, graded as `truth` says, without gold answers; or why nothing is learned.

        A majority is of equal answers (`rewards.votes.answer_key`). A rollout without an answer has no vote and is
        wrong.
        """
        # A failed rollout says nothing about the lessons, so the others are contrasted without it.
        ended = [trajectory for trajectory in group.trajectories if _ended(trajectory)]
        if len(ended) < min(2, self.config.group_size):
            errors = sorted({_error(trajectory) for trajectory in group.trajectories if not _ended(trajectory)})
            lost = len(group.trajectories) - len(ended)
            return f"{lost} of {len(group.trajectories)} rollouts failed: {'; '.join(errors)}"
        if self.config.truth != "answer":
            scores: list[Score | None] = [None] * len(ended)
            if self.config.truth == "majority":
                keys = [answer_key(trajectory.question, trajectory.answer) for trajectory in ended]
                first, *tied = most_frequent(keys) or [None]
                if first is None or tied:
                    return "no answer is more frequent than every other"
                scores = [Score(value=float(key == first)) for key in keys]
            ended = [
                trajectory.model_copy(update={"reward": score, "gold": None})
                for trajectory, score in zip(ended, scores, strict=True)
            ]
        rewards = {trajectory.reward.value for trajectory in ended if trajectory.reward}
        # Without contrast there is nothing to learn from, as with an advantage of 0.
        if self.config.skip_uniform and len(rewards) == 1:
            return "uniform"
        return Group(task=group.task, trajectories=tuple(ended))

    async def _merge(self, step: int, lessons: Sequence[_Suggestion], lesson_set: LessonSet) -> _Suggestion:
        """One list for the batch. The merger is asked only where changes come from more than one group.

        Without its answer nothing is lost: the proposals are used as they are, equal ones once.
        """
        proposed = [operation for lesson in lessons for operation in lesson.operations]
        if sum(any(operation.kind != "keep" for operation in lesson.operations) for lesson in lessons) < 2:
            return _Suggestion(operations=proposed)
        # Equal proposals of several groups are one.
        proposals = Proposals(proposed)
        try:
            answer = await self.reflector.merge(step, proposals, lesson_set)
        except PromptTooLongError as failure:
            return _Suggestion(operations=proposals.operations, unreadable=[f"merger: {failure.what}"])
        if answer.value is None:
            return _Suggestion(operations=proposals.operations, unreadable=answer.flaws)
        return _Suggestion(operations=answer.value.operations, left_out=answer.value.left_out, unreadable=answer.flaws)


def _ended(trajectory: Trajectory) -> bool:
    return trajectory.status == "ok" and trajectory.reward is not None


def _error(trajectory: Trajectory) -> str:
    """Return why a rollout failed, on one line."""
    return trajectory.error.line if trajectory.error else "no reward"
