"""One update of the library, without a disk: batch, rollouts, semantic advantage, operations, gate, library."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from midstream.core.errors import InfrastructureError
from midstream.core.metrics import Spent, tool_use
from midstream.core.protocols import Engine
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.practice.commit import UpdateRecord
from midstream.practice.gate import ChangeRecord, Decision, decide
from midstream.practice.ledger import Cache, Ledger
from midstream.practice.library import Library, measured, proven, render_modules, tokens
from midstream.practice.operations import Operation, Rules, Similarity, applied, screened
from midstream.practice.reflector import Reflector
from midstream.practice.runner import Match, Report, Runner
from midstream.practice.settings import PracticeConfig
from midstream.practice.similarity import embedding_similarity, leak_guard, ngram_similarity
from midstream.practice.training_free import TrainingFree
from midstream.rollout import Environment


@dataclass(frozen=True, kw_only=True, slots=True)
class Updated:
    """Result of an update; `trajectories` are those it learned from.

    `accepted` are the operations that lead from the library before to this one.
    """

    library: Library
    accepted: tuple[Operation, ...]
    record: UpdateRecord
    trajectories: Sequence[Trajectory]


class Practice:
    """The algorithm with its gate. It holds no state of a run: an update is a function of step, library and pending.

    `tasks` are learned from in `environment`; the gate tests on `validation` in `trial`, which is `environment` if not
    given. `engines` are by the reflector's roles. An accepted library is proven for the agent `identity`. `spent`
    returns what the run has used so far; `begin` gets the name of each phase, `report` its progress.
    """

    def __init__(
        self,
        *,
        config: PracticeConfig,
        tasks: Sequence[Task],
        validation: Sequence[Task],
        environment: Environment,
        trial: Environment | None = None,
        engines: Mapping[str, Engine],
        ledger: Ledger,
        seed: int,
        identity: str = "",
        cache: Cache | None = None,
        spent: Callable[[], Spent] = Spent,
        begin: Report = lambda phase: None,
        report: Report = lambda text: None,
    ) -> None:
        self.config, self.tasks, self.validation, self.seed = config, tasks, validation, seed
        self.identity, self.spent, self.begin = identity, spent, begin
        self._leak = leak_guard([*tasks, *validation]) if config.library.leak_guard else None

        def runner(environment: Environment) -> Runner:
            seed = derive_seed(self.seed, "rollouts")
            return Runner(environment, ledger, seed, shuffle=config.shuffle_rewards, cache=cache, report=report)

        self.runner, self.trial = runner(environment), runner(trial or environment)
        reflector = Reflector(config, engines, ledger, derive_seed(seed, "optimiser"))  # words: allow (a seed's label)
        self.algorithm = TrainingFree(config=config, runner=self.runner, reflector=reflector)

    async def update(self, step: int, library: Library, pending: Sequence[Operation], version: int) -> Updated:
        """Make update number `step`, from 1; `version` is the number that its library gets if it changes.

        Raises:
            InfrastructureError: every rollout of the batch, or of a block of the gate, failed.
            BudgetError: a limit was reached.
        """
        self.begin("learning")
        epoch, tasks = self.batch(step)
        proposal = await self.algorithm.propose(step, tasks, library)
        trajectories = [trajectory for group in proposal.groups for trajectory in group.trajectories]
        errors = [trajectory.error for trajectory in trajectories if trajectory.error]
        # Where every rollout failed, nothing can be learned: the run stops until the cause is repaired.
        if errors and len(errors) == len(trajectories):
            raise InfrastructureError(
                f"all {len(errors)} rollouts of the batch ended in errors; the first:\n{errors[0].message}",
                code="all-rollouts-failed",
                cause="a server, tool or sandbox is broken",
                fix="repair it, then: midstream resume RUN",
            )
        proposed = [*pending, *proposal.operations]
        rules = await self._rules(library, proposed)
        moved, outcomes = screened(library, proposed, rules, pending=len(pending))
        changes = [
            outcome.operation for outcome in outcomes if not outcome.refused and outcome.operation.kind != "keep"
        ]
        used = Counter[str]()  # rollouts by lesson, those of the gate first
        decision = await self._decide(step, moved, changes, used)
        used.update({lesson.id: len(trajectories) for lesson in library.rendered})
        after = self._measured(library, decision, used)
        ended = [trajectory for trajectory in trajectories if trajectory.status == "ok"]
        rewards = [trajectory.reward.value for trajectory in ended if trajectory.reward is not None]
        no_longer_sound = [outcome for outcome in outcomes[: len(pending)] if outcome.refused]
        return Updated(
            library=after,
            accepted=tuple(change.operation for change in decision.changes if change.fate == "accepted"),
            record=UpdateRecord(
                step=step,
                epoch=epoch,
                tasks=tuple(task.id for task in tasks),
                groups=len(proposal.groups),
                uniform=proposal.uniform,
                broken=dict(proposal.broken),
                failed=dict(proposal.failed),
                mean_reward=fmean(rewards) if rewards else 0.0,
                turns_mean=fmean(len(trajectory.turns) for trajectory in ended) if ended else 0.0,
                tool_use=tool_use(trajectories),
                proposed=(*outcomes[len(pending) :], *proposal.left_out, *no_longer_sound),
                changes=decision.changes,
                tests=decision.tests,
                bisect_pairs=decision.bisect_pairs,
                bisect_left_out=decision.bisect_left_out,
                unreadable=tuple(proposal.unreadable),
                version=version if after != library else version - 1,
                lessons=len(after.rendered),
                spent=self.spent(),
            ),
            trajectories=trajectories,
        )

    def batch(self, step: int) -> tuple[int, list[Task]]:
        """The epoch (from 1) and the tasks of an update: every task once an epoch, in another order each time."""
        per_epoch = self.config.updates // self.config.epochs
        epoch, number = divmod(step - 1, per_epoch)
        order = list(self.tasks)
        random.Random(derive_seed(self.seed, "epoch", epoch)).shuffle(order)
        size = self.config.batch_size
        return epoch + 1, order[number * size : (number + 1) * size]

    async def _rules(self, library: Library, proposed: Sequence[Operation]) -> Rules:
        """What a lesson must satisfy; it may give away no answer of a task that is learned from or tested on."""
        config = self.config.library
        similarity: Similarity | None = ngram_similarity if config.likeness is not None else None
        if similarity and config.embedding:
            bound = config.lesson_tokens  # what is too long for a lesson may be too long for the server
            texts = [change.text for change in proposed if bound is None or tokens(change.text) <= bound]
            texts += [lesson.text for lesson in library.lessons]
            similarity = await embedding_similarity(config.embedding, texts)
        return Rules(
            modules=self.config.modules,
            max_tokens=config.max_tokens,
            lesson_tokens=config.lesson_tokens,
            similarity=similarity,
            threshold=config.likeness or 1.0,
            leak=self._leak,
            subsets=self.config.gate.enabled,
        )

    async def _decide(self, step: int, library: Library, changes: Sequence[Operation], used: Counter[str]) -> Decision:
        """Ask the gate, or, where it is off, accept everything, as the paper does. `used` counts lessons in prompts."""
        if not self.config.gate.enabled:
            records = tuple(ChangeRecord(operation=change, fate="accepted") for change in changes)
            return Decision(library=applied(library, changes), changes=records, tests=())

        async def play(name: str, matches: Sequence[Match]) -> list[tuple[float, float] | None]:
            for match in matches:
                used.update(lesson.id for side in (match.first, match.other) for lesson in side.rendered)
            return await self.trial.pairs(f"gate-{step}-{name}", matches)

        self.begin("gate")
        return await decide(
            library,
            changes,
            tasks=self.validation,
            play=play,
            config=self.config.gate,
            updates=self.config.updates,
            seed=derive_seed(self.seed, "gate", step),
        )

    def _measured(self, before: Library, decision: Decision, used: Mapping[str, int]) -> Library:
        """The library of the decision with counts, measured effects, and the agent that it is proven for."""
        effects = {
            change.operation.id: change.effect
            for change in decision.changes
            if change.effect and change.fate == "accepted" and change.operation.kind in ("add", "modify")
        }
        library = measured(decision.library, used, effects)
        proven_for = before.proven_for
        if render_modules(library) != render_modules(before):
            # The gate has tested the change only, so the library before it must have been proven, or empty.
            sound = not render_modules(before) or proven_for == self.identity
            proven_for = self.identity if self.config.gate.enabled and sound else ""
        return proven(library, proven_for)
