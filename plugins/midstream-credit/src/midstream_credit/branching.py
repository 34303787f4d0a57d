"""Rollouts that branch: a part of a group continues its other trajectories from the middle of them.

    t#0   task | call 1 | tool | call 2 | tool | call 3 | answer          sampled from the start
    t#4   ................................. fork | call 3' | answer'      fork_of = "t#0"

An agent's state cannot be copied: it is a coroutine, or another program. So a fork is a run of its own, of the same
agent on the same task with its parent's seed. As long as it asks for what its parent asked, it gets its parent's
replies, and no engine is asked; from the fork on, replies are sampled, with other seeds. Tools run again. Where one
answers otherwise, the request that holds its answer is another one, and the run samples from there.

Sources: ARPO (arXiv 2507.19849), Tree-GRPO (arXiv 2509.21240); README.md has what differs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any, Literal

from pydantic import Field

from midstream.components.component import ComponentConfig, Context
from midstream.core.agent import Agent, RunContext
from midstream.core.engine import Engine, ForwardedReply, ForwardedRequest, LockstepEngine, Request, ServedEngine
from midstream.core.errors import RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.sequences import trainable
from midstream.core.source import Dialogue, Dialogues
from midstream.core.task import Task
from midstream.core.trajectory import Call, Trajectory
from midstream.engines.cached import request_key
from midstream.rollout import Ended, Environment, Group, OnDone, Place, run_each


class ForkConfig(ComponentConfig):
    """Some trajectories of a group fork from the others (ARPO, Tree-GRPO).

    Attributes:
        initial: trajectories of a group that are sampled from the start; the others fork from them; by default half
        at: where they fork: `entropy`: first where the policy became most uncertain since its first reply; `tool`: at
            replies to a tool's result; `random`: at any reply but the first
        tokens: of the beginning of a reply whose mean surprise estimates the entropy
        probability: of forking at a reply that is as uncertain as the first one (`entropy`; ARPO's alpha)
        slope: added to it for each nat that the entropy has risen (ARPO's beta)
        ways: continuations of one fork, the parent's included (ARPO's beam size)
        rounds: in which the forks are made; from the second on forks have forks, too
    """

    initial: int | None = Field(default=None, ge=1)
    at: Literal["entropy", "tool", "random"] = "entropy"
    tokens: int = Field(default=20, ge=1)
    probability: float = Field(default=0.5, ge=0, le=1)
    slope: float = 0.2
    ways: int = Field(default=2, ge=2)
    rounds: int = Field(default=1, ge=1)

    def check_recipe(self, where: str, recipe: Any) -> None:
        """Refuse a group without a place for a fork. Raises `RecipeError`."""
        if (self.initial or 1) >= recipe.training.group_size:
            raise RecipeError(
                f"{where}.initial = {self.initial} leaves no fork in a group of {recipe.training.group_size}",
                code="setting-range",
                fix="lower it, or raise training.group_size, which counts forks too",
            )

    def build(self, context: Context | None) -> partial[Any]:
        """The function that takes the place of `midstream.rollout.rollout`."""
        return partial(branching_rollout, self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fork:
    """A reply at which a trajectory may fork.

    `parent` is the index of its trajectory in the group, `call` the place of the reply among all that this run asked
    for, `rise` the nats by which the entropy is above that of its role's first reply. `after_tool`: the reply follows a
    tool's result.
    """

    parent: int
    call: int
    rise: float = 0.0
    after_tool: bool = False


def choose(candidates: Sequence[Fork], slots: int, config: ForkConfig, seed: int) -> list[Fork]:
    """The forks of at most `slots` new trajectories; `ways - 1` of them share one.

    With `entropy` the candidates are taken in the order of their rise, each with probability `probability + slope *
    rise`. Otherwise they are in a random order, in which every parent has its first fork before any has its second.
    """
    rng = random.Random(seed)
    if config.at == "entropy":
        ordered = sorted(candidates, key=lambda fork: (-fork.rise, fork.parent, fork.call))
        taken = [fork for fork in ordered if rng.random() < config.probability + config.slope * fork.rise]
    else:
        fitting = [fork for fork in candidates if fork.after_tool or config.at == "random"]
        rng.shuffle(fitting)
        before = [sum(other.parent == fork.parent for other in fitting[:place]) for place, fork in enumerate(fitting)]
        taken = [fork for _, fork in sorted(zip(before, fitting, strict=True), key=lambda pair: pair[0])]
    return [fork for fork in taken for _ in range(config.ways - 1)][:slots]


async def branching_rollout(
    config: ForkConfig,
    environment: Environment,
    tasks: Sequence[Task],
    *,
    group_size: int,
    seed: int,
    roles: Collection[str],
    on_done: OnDone | None = None,
) -> list[Group]:
    """Run every task `group_size` times, as `midstream.rollout.rollout` does, the later ones as forks.

    First all of a group's `initial` trajectories run, then each round's forks, chosen from what is recorded. A
    trajectory forks at a call of one of the `roles`. Where a group has too few places to fork at, as where its first
    trajectories failed, the rest is sampled from the start. What is random derives from `seed`.
    """
    initial, done = min(config.initial or group_size // 2, group_size), dict[Place, Trajectory]()
    records: dict[Place, _RunRecord] = {}
    bounds = [initial + (group_size - initial) * part // config.rounds for part in range(config.rounds + 1)]
    used: set[tuple[str, int, int]] = set()

    def collect(ended: Sequence[Ended]) -> None:
        for order, trajectory in ended:
            done[tasks[order // group_size].id, order % group_size] = trajectory
        if on_done is not None:
            on_done([trajectory for _, trajectory in ended])

    for first, last in zip([0, *bounds], bounds, strict=False):
        plans: dict[int, _Plan] = {}  # by the seed of the run
        for task in tasks if first else ():
            found = [
                fork
                for index in range(first)
                for fork in candidates(done[task.id, index], index, records.get((task.id, index)), roles, config.tokens)
                if (task.id, index, fork.call) not in used
            ]
            forks = choose(found, last - first, config, derive_seed(seed, "forks", task.id, first))
            used |= {(task.id, fork.parent, fork.call) for fork in forks}
            for index, fork in enumerate(forks, first):
                parent = done[task.id, fork.parent]
                plans[derive_seed(seed, task.id, index)] = records[task.id, fork.parent].forking_at(
                    fork.call, parent.id
                )
        agent = _ForkingAgent(environment.agent, plans, {})
        dialogues = environment.dialogues and _ForkingDialogues(environment.dialogues, plans)
        places = {(task.id, index) for task in tasks for index in range(first, last)}
        await run_each(
            replace(environment, agent=agent, dialogues=dialogues),
            tasks,
            group_size=group_size,
            seed=seed,
            skip={(task.id, index) for task in tasks for index in range(group_size)} - places,
            on_ended=collect,
        )
        records |= {
            place: agent.records[run] for place in places if (run := derive_seed(seed, *place)) in agent.records
        }
    return [Group(task=task, trajectories=tuple(done[task.id, index] for index in range(group_size))) for task in tasks]


def candidates(
    trajectory: Trajectory, index: int, record: _RunRecord | None, roles: Collection[str], tokens: int
) -> list[Fork]:
    """The replies of a finished trajectory at which another may fork.

    Not its first: from there on all would be new. Nor the first that a fork has sampled, which is one of its parent's.
    """
    if record is None or trajectory.status == "error" or trajectory.reward is None:
        return []
    replies = [
        (place, asked.call)
        for place, asked in enumerate(record.asked)
        if asked.role in roles and asked.call is not None and trainable(asked.call)
    ]
    after_tool = _after_tools(trajectory, roles)
    # The modules of an agent differ in entropy, so each is compared with its own first reply.
    first = {call.role: _entropy(call, tokens) for _, call in reversed(replies)}
    rises = [_entropy(call, tokens) - first[call.role] for _, call in replies]
    found = [
        Fork(parent=index, call=place, rise=rise, after_tool=_sampled(call) in after_tool)
        for (place, call), rise in zip(replies, rises, strict=True)
        if not call.replayed
    ]
    return found[1:]


def _entropy(call: Call, tokens: int) -> float:
    """The mean of -log p of the first sampled tokens, whose expectation is the mean entropy there, in nats."""
    return -fmean(call.logprobs[:tokens])


def _sampled(call: Call) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return call.prompt_ids, call.completion_ids


def _after_tools(trajectory: Trajectory, roles: Collection[str]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """What was sampled in calls of the roles before which a tool has answered since the role's last call."""
    found, answered = set(), set[str]()  # roles that have not yet replied to a result
    for calls, observed in (
        *((turn.calls, turn.observation and turn.command and not turn.command.error) for turn in trajectory.turns),
        (trajectory.closing_calls, None),
    ):
        for call in calls:
            if call.role in answered:
                found.add(_sampled(call))
                answered.discard(call.role)
        if observed:
            answered |= set(roles)
    return found


class TreeConfig(ComponentConfig):
    """Advantages within a tree and across trees (Tree-GRPO), of groups whose trajectories fork.

    A tree is a trajectory from the start with all that fork from it, and from these. With R_i the reward of trajectory
    i, and T(i) the rewards of its tree,

        A(i) = (R_i - mean(R)) / std(R) + weight (R_i - mean(T(i))) / std(T(i))

    Standard deviations as everywhere in midstream; a tree of one trajectory or of equal rewards adds 0.

    Attributes:
        weight: of the advantage within the tree
        normalize_by_std: divide by standard deviations
    """

    weight: float = Field(default=1.0, ge=0)
    normalize_by_std: bool = True

    def build(self, context: Context | None) -> Callable[..., list[float]]:
        """The function of a group."""

        def advantages(rewards: Sequence[float], trajectories: Sequence[Trajectory], *_: object) -> list[float]:
            from midstream.training.rows import group_advantages

            parents = {trajectory.id: trajectory.fork_of for trajectory in trajectories}
            trees: dict[str, list[int]] = {}
            for place, trajectory in enumerate(trajectories):
                root = trajectory.id
                while parents.get(root):
                    root = parents[root]
                trees.setdefault(root, []).append(place)
            found = group_advantages(rewards, normalize_by_std=self.normalize_by_std)
            for places in trees.values():
                own = group_advantages([rewards[place] for place in places], normalize_by_std=self.normalize_by_std)
                for place, value in zip(places, own, strict=True):
                    found[place] += self.weight * value
            return found

        return advantages


# -- one run, and what it asks -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """How a run forks: its parent's id, the seed of the run in which the trunk began, and the replies of the trunk.

    `fork` is the key of the request at which it forks, `known` are the keys of all requests of the parent.
    """

    parent: str
    seed: int
    trunk: Sequence[_Asked]
    fork: str
    known: frozenset[str]


@dataclass(kw_only=True, slots=True)
class _Asked:
    """One request of a run, by its key, and its reply: None until there is one."""

    key: str
    role: str
    call: Call | None = None


@dataclass(kw_only=True, slots=True)
class _RunRecord:
    """One run under way: what it has asked so far, and what is left of its trunk, by the keys of requests.

    `run` is the seed of the trajectory, `seed` that of its agent and tools: of the run in which the trunk began.
    """

    run: int
    seed: int
    plan: _Plan | None = None  # None for a run from the start
    forked: bool = False
    trunk: dict[str, list[Call]] = field(default_factory=dict)
    asked: list[_Asked] = field(default_factory=list)

    def forking_at(self, call: int, parent: str) -> _Plan:
        """How another run forks from this one, the trajectory `parent`, at a place in what it asked."""
        return _Plan(
            parent=parent,
            seed=self.seed,
            trunk=[asked for asked in self.asked[:call] if asked.call is not None],
            fork=self.asked[call].key,
            known=frozenset(asked.key for asked in self.asked),
        )

    async def answer(self, engine: Engine, request: Request) -> Call:
        """The recorded reply to a request of the trunk, or else the engine's."""
        key = request_key(replace(request, seed=0), {"role": request.role, "ids": list(request.prompt_ids)})
        asked = _Asked(key=key, role=request.role)
        self.asked.append(asked)
        if left := self.trunk.get(key):
            call = left.pop(0)
            free = call.usage.model_copy(update={"cost_usd": 0.0})
            asked.call = call.model_copy(update={"replayed": True, "usage": free, "failures": ()})
            return asked.call
        if self.plan is not None:
            request = replace(request, seed=derive_seed(self.run, request.seed))
            # From now on what is new belongs to the fork. Of an agent that asks for several things at once, some of the
            # trunk may still come.
            self.forked |= key == self.plan.fork
        asked.call = await engine.sample(request)
        if self.plan is not None and not self.forked and key not in self.plan.known:
            # A tool has answered otherwise, so this is no longer the parent's run. A prompt that was too long, for the
            # parent too, does not come here.
            self.trunk.clear()
        return asked.call


class _RunEngine:
    """An engine as one run sees it."""

    def __init__(self, engine: Engine, record: _RunRecord) -> None:
        self.engine, self.record = engine, record
        self.name, self.token_exact = engine.name, engine.token_exact

    @property
    def codec(self) -> Any:
        """The engine's codec, which may be set later."""
        return getattr(self.engine, "codec", None)

    async def sample(self, request: Request) -> Call:
        """Answer a request, from the trunk if it can."""
        return await self.record.answer(self.engine, request)

    async def close(self) -> None:
        """Nothing: the engine belongs to others."""


class _LockstepRunEngine(_RunEngine):
    """Agents ask an engine in this process one after the other, which they know by its methods."""

    engine: Any

    def join(self, order: int) -> None:
        """Pass on to the engine."""
        self.engine.join(order)

    def leave(self, order: int) -> None:
        """Pass on to the engine."""
        self.engine.leave(order)


class _ServedRunEngine(_RunEngine):
    """What another program asks of other APIs is asked again."""

    engine: Any

    async def forward(self, request: ForwardedRequest) -> ForwardedReply:
        """Pass on to the engine."""
        return await self.engine.forward(request)


def _engine_of_run(engine: Engine, record: _RunRecord) -> _RunEngine:
    kind = _RunEngine
    if isinstance(engine, LockstepEngine):
        kind = _LockstepRunEngine
    elif isinstance(engine, ServedEngine):
        kind = _ServedRunEngine
    return kind(engine, record)


class _ForkingAgent:
    """An agent whose runs are recorded, and replay the trunk of their plan; both by the seed of the run."""

    def __init__(self, agent: Agent, plans: Mapping[int, _Plan], records: dict[int, _RunRecord]) -> None:
        self.agent, self.plans, self.records = agent, plans, records
        self.name, self.waits = agent.name, getattr(agent, "waits", False)

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        """Run once. Another attempt begins with the whole trunk again."""
        plan, run = self.plans.get(context.seed), context.seed
        record = self.records[run] = _RunRecord(run=run, seed=run)
        if plan is not None:
            record.plan, record.seed = plan, plan.seed
            for asked in plan.trunk:
                assert asked.call is not None
                record.trunk.setdefault(asked.key, []).append(asked.call)
            # What is random in agent and tools is what it was for the parent.
            tools = context.tools_for(plan.seed) if context.tools_for is not None else context.tools
            context = replace(context, seed=plan.seed, tools=tools)
        engines: Mapping[str, Engine] = {
            name: _engine_of_run(engine, record) for name, engine in context.engines.items()
        }
        trajectory = await self.agent.run(task, replace(context, engines=engines))
        if plan is None:
            return trajectory
        return trajectory.model_copy(update={"seed": run, "fork_of": plan.parent, "fork_at": len(plan.trunk)})

    async def close(self) -> None:
        """Nothing: the agent belongs to others."""


class _ForkingDialogues:
    """Opens a fork's dialogue with the seed of the run in which its trunk began."""

    def __init__(self, dialogues: Dialogues, plans: Mapping[int, _Plan]) -> None:
        self.dialogues, self.plans = dialogues, plans

    def open(self, task: Task, *, seed: int) -> Dialogue:
        """Open a dialogue of a task."""
        return self.dialogues.open(task, seed=self.plans[seed].seed if seed in self.plans else seed)
