"""One update of the library, without a disk: batch, rollouts, semantic advantage, operations, gate, library."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from midstream.core.errors import InfrastructureError
from midstream.core.metrics import Spent, tool_use
from midstream.core.protocols import Engine
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.trajectory import Trajectory
from midstream.practice.commit import UpdateRecord
from midstream.practice.gate import ChangeRecord, Decision, decide
from midstream.practice.ledger import Cache, Ledger
from midstream.practice.library import Library, counted, proven, render_modules, tokens, with_effect
from midstream.practice.operations import Operation, Outcome, Rules, Similarity, applied, screened
from midstream.practice.reflector import Reflector
from midstream.practice.runner import Match, Report, Runner
from midstream.practice.settings import PracticeConfig
from midstream.practice.similarity import embedding_similarity, leak_guard, ngram_similarity
from midstream.practice.training_free import Proposal, TrainingFree
from midstream.rollout import Environment


@dataclass(frozen=True, kw_only=True, slots=True)
class Updated:
    """What an update came to. `pending` changes join the next one's; `trajectories` are those it learned from.

    `accepted` are the operations that led from the library before to this one.
    """

    library: Library
    pending: tuple[Operation, ...]
    accepted: tuple[Operation, ...]
    record: UpdateRecord
    trajectories: Sequence[Trajectory]


class Practice:
    """The algorithm with its gate. It holds no state of a run: an update is a function of step, library and pending.

    `trial` is where the gate plays, where that is not as learning does; `identity` names the agent that an accepted
    library is proven for. `spent` says what the run has used, `begin` and `report` are told what is being done.
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
        self.identity, self.spent, self.begin, self.report = identity, spent, begin, report
        self._leak = leak_guard([*tasks, *validation]) if config.library.leak_guard else None

        def runner(environment: Environment) -> Runner:
            seed = derive_seed(self.seed, "rollouts")
            return Runner(environment, ledger, seed, shuffle=config.shuffle_rewards, cache=cache, report=report)

        self.runner, self.trial = runner(environment), runner(trial or environment)
        reflector = Reflector(config, engines, ledger, derive_seed(seed, "optimiser"))
        self.algorithm = TrainingFree(config=config, runner=self.runner, reflector=reflector)

    async def update(self, step: int, library: Library, pending: Sequence[Operation], version: int) -> Updated:
        """Update number `step`, from 1; `version` is the number that its library gets if it changes."""
        self.begin("learning")
        epoch, tasks = self.batch(step)
        proposal = await self.algorithm.propose(step, tasks, library)
        found = [one for group in proposal.groups for one in group.trajectories]
        _require_one(found)
        proposed = [*pending, *proposal.operations]
        rules = await self._rules(library, proposed)
        moved, outcomes = screened(library, proposed, rules, pending=len(pending))
        changes = [one.operation for one in outcomes if not one.refused and one.operation.kind != "keep"]
        used = Counter[str]()
        decision = await self._decide(step, moved, changes, used)
        used.update({one.id: len(found) for one in library.rendered})
        after = self._counted(library, decision, used)
        return Updated(
            library=after,
            pending=decision.pending,
            accepted=tuple(one.operation for one in decision.changes if one.fate == "accepted"),
            record=UpdateRecord(
                step=step,
                epoch=epoch,
                tasks=tuple(task.id for task in tasks),
                **_numbers(proposal, found),
                proposed=(*outcomes[len(pending) :], *proposal.left_out, *_refused(outcomes[: len(pending)])),
                changes=decision.changes,
                tests=decision.tests,
                bisect_pairs=decision.bisect_pairs,
                bisect_left_out=decision.bisect_left_out,
                unreadable=tuple(proposal.unreadable),
                version=version if after != library else version - 1,
                lessons=len(after.rendered),
                spent=self.spent(),
            ),
            trajectories=found,
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
        likeness: Similarity | None = ngram_similarity if config.likeness is not None else None
        if likeness and config.embedding:
            bound = config.lesson_tokens  # what is too long for a lesson may be too long for the server
            texts = [one.text for one in proposed if bound is None or tokens(one.text) <= bound]
            texts += [one.text for one in library.lessons]
            likeness = await embedding_similarity(config.embedding, texts)
        return Rules(
            modules=self.config.modules,
            max_tokens=config.max_tokens,
            lesson_tokens=config.lesson_tokens,
            likeness=likeness,
            threshold=config.likeness or 1.0,
            leak=self._leak,
            subsets=self.config.gate.enabled,
        )

    async def _decide(self, step: int, library: Library, changes: Sequence[Operation], used: Counter[str]) -> Decision:
        """Ask the gate, or, where it is off, accept everything, as the paper does. `used` counts lessons in prompts."""
        if not self.config.gate.enabled:
            records = tuple(ChangeRecord(operation=one, fate="accepted") for one in changes)
            return Decision(library=applied(library, changes), changes=records, tests=())

        async def play(name: str, matches: Sequence[Match]) -> list[tuple[float, float] | None]:
            for match in matches:
                used.update(one.id for side in (match.first, match.other) for one in side.rendered)
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

    def _counted(self, before: Library, decision: Decision, used: Mapping[str, int]) -> Library:
        """The library that was decided on, with counters, measured effects, and for whom it is proven."""
        effects = {
            one.operation.id: one.effect
            for one in decision.changes
            if one.effect and one.fate == "accepted" and one.operation.kind in ("add", "modify")
        }
        library = counted(
            decision.library,
            used=used,
            helped={name: effect.helped for name, effect in effects.items()},
            harmed={name: effect.harmed for name, effect in effects.items()},
        )
        for name, effect in effects.items():
            library = with_effect(library, name, effect)
        proven_for = before.proven_for
        if render_modules(library) != render_modules(before):
            # The gate has tested the change alone: what it was made to must be proven, or nothing.
            sound = not render_modules(before) or proven_for == self.identity
            proven_for = self.identity if self.config.gate.enabled and sound else ""
        return proven(library, proven_for)


def _numbers(proposal: Proposal, found: Sequence[Trajectory]) -> dict[str, Any]:
    """What a record says of the rollouts; means are over those that ended."""
    ended = [one for one in found if one.status == "ok"]
    rewards = [one.reward.value for one in ended if one.reward is not None]
    return {
        "groups": len(proposal.groups),
        "uniform": proposal.uniform,
        "broken": dict(proposal.broken),
        "failed": dict(proposal.failed),
        "mean_reward": fmean(rewards) if rewards else 0.0,
        "turns_mean": fmean(len(one.turns) for one in ended) if ended else 0.0,
        "tool_use": tool_use(found),
    }


def _refused(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [one for one in outcomes if one.refused]


def _require_one(found: Sequence[Trajectory]) -> None:
    """Nothing is learned where everything around the model is broken: the run stops until that is mended."""
    if found and all(one.error for one in found):
        first = found[0].error
        raise InfrastructureError(
            f"all {len(found)} rollouts of the batch ended in errors; the first:\n{first.message if first else ''}",
            cause="a server, tool or sandbox is broken",
            fix="see to that, then: midstream resume RUN",
        )
