"""One update of the lesson set: batch, rollouts, proposals, gate, lesson set.

Source: Training-Free GRPO, arXiv 2510.08191. Where Flow-GRPO turns a group's rewards into numbers for a gradient, here
texts change. What suggests the changes is a proposer; the paper's is `reflection.py`.

    rollouts of the batch, the lesson set in their prompts
    -> the proposers' operations; of several new versions of one text, the best on the batch's tasks
    -> sound operations -> the gate -> the lesson set
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from midstream.core.engine import Engine
from midstream.core.errors import InfrastructureError, RecipeError
from midstream.core.metrics import Tally
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.texts import kind_of
from midstream.core.tool import RunProgress
from midstream.lessons.approval import NOBODY, Approvals
from midstream.lessons.commit import MadeUpdate, UpdateRecord
from midstream.lessons.feedback import LessonFeedback
from midstream.lessons.gate import ChangeRecord, Decision, decide
from midstream.lessons.ledger import Ledger
from midstream.lessons.lesson_set import LessonOrigin, LessonSet, measured, proven, render_modules
from midstream.lessons.operations import Operation, OperationOutcome, Rules, applied, screened
from midstream.lessons.proposer import Proposal, Proposer, Work
from midstream.lessons.reflection import Reflection
from midstream.lessons.reflector import Reflector
from midstream.lessons.runner import Match, Runner
from midstream.lessons.settings import LESSON_TOKENS, LessonsConfig
from midstream.lessons.similarity import leak_guard
from midstream.rollout import Environment, Group
from midstream.runs.budget import Budget, BudgetConfig
from midstream.runs.journal import Report

RETESTED = "tested again: the weights have moved since it was accepted"


class LessonLearner:
    """The algorithm with its gate. It holds no state of a run: an update is a function of step, lesson set and pending.

    `tasks` are learned from in `environment`; the gate tests on `validation` in `gate_environment`.
    `engines` are by the reflector's roles. An accepted set is proven for the agent `identity`. `budget` counts what
    is used, `report` gets the progress. With `retests` each update tests whether a lesson is still needed, by turns.
    `feedback` may refuse proposals.
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
        proposers: Mapping[str, Proposer] | None = None,
        ledger: Ledger,
        feedback: LessonFeedback | None = None,
        seed: int,
        identity: str = "",
        budget: Budget | None = None,
        report: Report = lambda text: None,
        retests: bool = False,
    ) -> None:
        self.config, self.tasks, self.validation, self.seed = config, tasks, validation, seed
        self.retests = retests
        self.identity, self.budget, self.ledger = identity, budget or Budget(BudgetConfig()), ledger
        self.feedback, self.proposers = feedback, proposers or {"reflection": Reflection()}
        # A lesson may give away no answer of a task that is learned from or tested on, any other text none of the
        # latter.
        guarded = config.limits.leak_guard
        self._leak = [leak_guard([*tasks, *validation])] if guarded else []
        self._test_leak = [leak_guard(validation)] if guarded and any("." in place for place in config.modules) else []
        self.runner = Runner(environment, ledger, derive_seed(seed, "rollouts"), config.shuffle_rewards, report)
        self.gate_runner = replace(self.runner, environment=gate_environment or environment)
        label = "optimiser"  # of seeds, as in runs that exist  # words: allow
        self.reflector = Reflector(config, engines, ledger, derive_seed(seed, label))

    async def update(
        self,
        step: int,
        lesson_set: LessonSet,
        pending: Sequence[Operation],
        version: int,
        said: Approvals = NOBODY,
    ) -> MadeUpdate:
        """Make update number `step`, from 1; `version` is the number that its lesson set gets if it changes.

        What people `said` keeps changes out.

        Raises:
            InfrastructureError: every rollout of the batch, or of a block of the gate, failed.
            BudgetError: a limit was reached.
        """
        began, self.budget.phase = time.monotonic(), "learning"
        epoch, tasks = self.batch(step)
        # Before the rollouts: feedback that comes meanwhile is for the next update.
        guards = [*self._test_leak, *([self.feedback.guard()] if self.feedback else [])]
        rules = Rules(
            modules=self.config.modules,
            max_tokens=self.config.limits.max_tokens,
            lesson_tokens=LESSON_TOKENS,
            repeats=False,
            waiting=[change.operation for change in (*said.waiting, *said.approved)],
            rejected=[change.operation for change in said.rejected],
            guards=guards,
            lesson_guards=self._leak,
            subsets=self.config.gate.enabled,
        )
        proposal = await self.propose(step, tasks, lesson_set, rules, pending)
        lost = [outcome.operation for outcome in proposal.left_out]
        pending = [operation for operation in pending if operation not in lost]
        trajectories = [trajectory for group in proposal.groups for trajectory in group.trajectories]
        proposed = [*pending, *proposal.operations]
        moved, outcomes = screened(lesson_set, proposed, rules, pending=len(pending))
        sound = [outcome.operation for outcome in outcomes if not outcome.refused]
        changes = [operation for operation in sound if operation.kind != "keep"]
        used = Counter({lesson.id: len(trajectories) for lesson in lesson_set.rendered})
        after, decision = await self._gated(step, lesson_set, moved, changes, used, rules)
        done = [trajectory for trajectory in trajectories if trajectory.status == "ok"]
        rewards = [trajectory.reward.value for trajectory in done if trajectory.reward is not None]
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
                turns_mean=fmean(len(trajectory.turns) for trajectory in done) if done else 0.0,
                tool_use=Tally(trajectories).tools(),
                proposed=(*outcomes[len(pending) :], *proposal.left_out, *no_longer_sound),
                changes=decision.changes,
                tests=decision.tests,
                agent=self.identity,
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
        rules: Rules,
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
                moved,
                changes,
                retested=self._retested(step, moved, changes, rules),
                tasks=self.validation,
                play=play,
                config=config,
                updates=updates,
                seed=seed,
            )
        else:
            # As in the paper, every sound change is accepted.
            records = tuple(ChangeRecord(operation=change, fate="accepted") for change in changes)
            decision = Decision(lesson_set=applied(moved, changes), changes=records, tests=())
        if self.config.approval == "person":
            records = tuple(
                change.model_copy(update={"fate": "waiting"}) if change.fate == "accepted" else change
                for change in decision.changes
            )
            decision = replace(decision, lesson_set=moved, changes=records)
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

    def _retested(
        self, step: int, lesson_set: LessonSet, changes: Sequence[Operation], rules: Rules
    ) -> list[Operation]:
        """The removal of one lesson that no change concerns: as weights move, it may no longer be needed."""
        if not (self.retests and self.config.gate.margin):
            return []
        touched, origin = {change.id for change in changes}, LessonOrigin(update=step, why=RETESTED)
        removals = [
            Operation(kind="delete", id=lesson.id, origin=origin)
            for lesson in lesson_set.rendered
            if lesson.id not in touched
        ]
        # Each for itself: one is chosen.
        sound = [removal for removal in removals if not screened(lesson_set, [removal], rules)[1][0].refused]
        return [sound[step % len(sound)]] if sound else []

    # --- what a batch suggests ---

    async def propose(
        self,
        step: int,
        tasks: Sequence[Task],
        lesson_set: LessonSet,
        rules: Rules,
        pending: Sequence[Operation] = (),
    ) -> Proposal:
        """Roll out, and ask every proposer, each with an equal number of rollouts to try candidates with.

        Of several new versions of one text, `pending` ones included, the best on the batch's tasks is kept.
        Raises `InfrastructureError` if every rollout failed: the run stops until the cause is repaired.
        """
        # Simulated and degraded tools follow the progress; the gate has none.
        progress = RunProgress(step=step, steps=self.config.updates)
        runner = replace(self.runner, environment=replace(self.runner.environment, progress=progress))
        groups = list[Group]()
        if self.config.lessons_from == "rollouts":
            groups = await runner.groups(f"step-{step}", tasks, lesson_set, self.config.group_size)
        errors = [trajectory.error for group in groups for trajectory in group.trajectories]
        if errors and all(errors) and errors[0] is not None:
            what = f"all {len(errors)} rollouts of the batch ended in errors; the first:\n{errors[0].message}"
            raise InfrastructureError(what, code="all-rollouts-failed", fix="fix that")

        def work(name: str) -> Work:
            return Work(
                name=name,
                step=step,
                seed=derive_seed(self.seed, name, step),
                tasks=tasks,
                groups=groups,
                lesson_set=lesson_set,
                config=self.config,
                rules=rules,
                reflector=self.reflector,
                runner=runner,
                # Rewards choose nothing where they must not grade.
                rollouts=self.config.search_rollouts if groups and self.config.truth == "answer" else 0,
            )

        found = list[Proposal]()
        for name, proposer in self.proposers.items():
            made = await proposer.propose(work(name))
            proposal = made if isinstance(made, Proposal) else Proposal(operations=_operations(name, made))
            # Where a proposer says nothing of it.
            origin = LessonOrigin(update=step, tasks=tuple(task.id for task in tasks), why=f"suggested by {name}")
            given = [
                each.model_copy(update={"origin": origin}) if each.origin == LessonOrigin() else each
                for each in proposal.operations
            ]
            found.append(replace(proposal, operations=given))
        operations = [operation for proposal in found for operation in proposal.operations]
        left_out = [outcome for proposal in found for outcome in proposal.left_out]
        versions: dict[str, list[Operation]] = {}
        for operation in (*pending, *operations):
            lesson = lesson_set.find(operation.id)
            if operation.kind == "modify" and lesson is not None and kind_of(lesson.module) == "text":
                versions.setdefault(operation.id, []).append(operation)
        for lesson_id, rivals in versions.items():
            if len(rivals) > 1:
                chosen = await work(f"versions of {lesson_id}").best([(operation,) for operation in rivals])
                lost = [operation for operation in rivals if operation not in chosen]
                operations = [operation for operation in operations if operation not in lost]
                reason = f"another version of {lesson_id} was better on the batch"
                left_out += [OperationOutcome(operation=operation, refused=reason) for operation in lost]
        return Proposal(
            operations=operations,
            groups=groups,
            uniform=max(proposal.uniform for proposal in found),
            broken={task: why for proposal in found for task, why in proposal.broken.items()},
            left_out=left_out,
            unreadable=[text for proposal in found for text in proposal.unreadable],
        )


def _operations(proposer: str, made: object) -> Sequence[Operation]:
    """What a proposer returned; None is nothing. Raises `RecipeError` for anything but operations."""
    if made is None:
        return []
    if isinstance(made, Sequence) and all(isinstance(each, Operation) for each in made):
        return made
    what = f"proposer {proposer!r} returned {made!r:.100}"
    raise RecipeError(what, code="component-failed", fix="return a list of midstream.lessons.operations.Operation")
