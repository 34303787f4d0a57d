"""The budget: everything that a run uses is counted here, and what could exceed a limit is refused.

Before a request its upper bound is reserved: a token is at least one byte of the prompt, and a completion has at most
`max_tokens`. Afterwards the server's count replaces it. A reservation that does not fit waits for requests under way;
one that cannot fit at all is refused. So no limit is exceeded by the servers' counts, whatever runs concurrently.
Attempts without a usable reply (too late, cut off, refused) report no usage and count nothing.

`ledger/spent.jsonl` holds a line for each reservation and one for its actual use, so that a resumed run knows what it
has used; requests that were under way when it was killed count at their upper bound. The file is never cleared.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from midstream.core.agent import Agent, RunContext
from midstream.core.data import Frozen, Settings
from midstream.core.engine import (
    Codec,
    Engine,
    ForwardedReply,
    ForwardedRequest,
    LockstepEngine,
    Request,
    ServedEngine,
)
from midstream.core.errors import BudgetError, EngineError, UsageError
from midstream.core.metrics import Spent
from midstream.core.task import Task
from midstream.core.trajectory import Call, Trajectory
from midstream.runs.files import storage_errors
from midstream.runs.journal import Journal, Records, skip_damage

HELD_BACK = 1.25  # times the use of the first evaluation is kept for the last one, whose prompts hold lessons
_COST_UNITS = 10**11  # costs are added up in billionths of a cent, as integers, so that a sum does not depend on order
_PER_MESSAGE, _PER_REQUEST = 16, 128  # tokens that a chat template may add
_PER_MEDIA = 10_000  # of an image or a sound, which may stand at an address


class BudgetConfig(Settings):
    """Limits on what a run may use, evaluations included; None: no limit.

    Attributes:
        rollouts: trajectories, evaluations included
        calls: requests to engines, failed ones included
        tokens: prompt and completion tokens of agent, tools' models, judge and reflector
        cost_usd: dollars, at the engines' prices, and the `cost_usd` that an agent of your own reports
        time_s: seconds after which nothing new starts
        updates: updates of the lesson set
    """

    rollouts: int | None = Field(default=None, ge=0)
    calls: int | None = Field(default=None, ge=0)
    tokens: int | None = Field(default=None, ge=0)
    cost_usd: float | None = Field(default=None, ge=0)
    time_s: float | None = Field(default=None, ge=0)
    updates: int | None = Field(default=None, ge=0)

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return self.model_dump(exclude_none=True)


UNITS = {
    "usd": "cost_usd", "rollouts": "rollouts", "calls": "calls", "tokens": "tokens", "seconds": "time_s",
    "updates": "updates",
}  # fmt: skip


def parse_limits(text: str) -> dict[str, float]:
    """The limits in a text such as "2 usd, 500 rollouts", by field of `BudgetConfig`. Raises `UsageError`."""
    limits: dict[str, float] = {}
    for part in str(text).split(","):
        number, _, unit = part.strip().lower().partition(" ")
        try:
            # "1 rollout" is a limit, too.
            name = UNITS.get(unit.strip()) or UNITS[f"{unit.strip()}s"]
            value = float(number) if name in ("cost_usd", "time_s") else int(number)
            if name in limits or not 0 <= value < math.inf:
                raise ValueError(part)
            limits[name] = value
        except (KeyError, ValueError) as error:
            raise UsageError(
                f"budget = {text!r} is not a limit",
                code="setting-range",
                fix=f'a number and one of {", ".join(UNITS)}, e.g. "2 usd"; several, each once, with commas between',
            ) from error
    return limits


class Entry(Frozen):
    """One line: what was reserved or, in a later line of the same number, used. `time_s` is the run's until then.

    `phase` is the part of the run ("learning", "gate", "evaluation 0"), `role` who asked, "" for a rollout itself.
    """

    number: int
    phase: str = ""
    role: str = ""
    spent: Spent = Spent()
    time_s: float = 0.0


class Budget:
    """Counts what a run uses, and refuses what could exceed a limit; `phase` is the part of the run under way."""

    def __init__(self, limits: BudgetConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self.phase = limits, ""
        self._clock, self._began, self._before_s = clock, clock(), 0.0
        self._entries: dict[int, Entry] = {}
        self._used: Counter[str] = Counter()
        self._under_way: dict[int, bool] = {}  # by number: whether it ends without anything else that waits here
        self._settled = asyncio.Event()  # a new one after each request
        self._held, self._held_s = Spent(), 0.0
        self._journal: Journal | None = None

    def open(self, path: Path) -> None:
        """Resume from the entries in `path`, and write there from now on."""
        with storage_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        for entry in Records(path, Entry).read():
            self._book(entry)
            self._before_s = max(self._before_s, entry.time_s)
        self._began = self._clock()
        self._journal = Journal(path)

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()

    @property
    def elapsed_s(self) -> float:
        """Seconds that the run has taken, over all its processes."""
        return self._before_s + self._clock() - self._began

    def spent(self) -> Spent:
        """Everything used so far; what is under way counts at its upper bound."""
        return _spent(self._used)

    def hold_back(self, phase: str) -> None:
        """Reserve a little more than the use of `phase` for later."""
        entries = [entry for entry in self._entries.values() if entry.phase == phase]
        used, times = _total(entries), [entry.time_s for entry in entries]
        self._held = Spent(
            rollouts=math.ceil(used.rollouts * HELD_BACK),
            tokens=math.ceil(used.tokens * HELD_BACK),
            cost_usd=used.cost_usd * HELD_BACK,
        )
        self._held_s = (max(times) - min(times)) * HELD_BACK if times else 0.0

    def release(self) -> None:
        """Make what was held back available."""
        self._held, self._held_s = Spent(), 0.0

    def start_rollout(self) -> int:
        """Count a rollout that begins now, and return its number for `settle`; raises `BudgetError` at the limit."""
        rollout = Spent(rollouts=1)
        # What an agent of your own will spend elsewhere is not known before: none starts where all is spent.
        limits = _amounts(self.limits)
        at_limit = (name for name in ("tokens", "cost_usd") if name in limits and 0 < limits[name] <= self._used[name])
        if limit := self._exceeded(rollout) or next(at_limit, None):
            raise self._refusal(limit, rollout)
        return self._reserve("", rollout)

    async def reserve(self, role: str, bound: Spent, *, wait: bool) -> int:
        """Reserve for a request, and return the number for `settle`; with `wait`, wait until there is room.

        A request without `wait` is from an engine in lockstep, which may answer only after those that wait here
        continue: so nothing waits for what it has reserved. Raises `BudgetError` if there cannot be any room.
        """
        while limit := self._exceeded(bound):
            coming = _total([self._entries[number] for number, alone in self._under_way.items() if alone])
            if limit == "time_s" or not wait or self._exceeded(bound, without=coming):
                raise self._refusal(limit, bound)
            await self._settled.wait()
        number = self._reserve(role, bound)
        self._under_way[number] = wait
        return number

    def settle(self, number: int, spent: Spent | None) -> None:
        """Book the actual use of a request or a rollout; None where it is unknown, which counts as the bound."""
        self._under_way.pop(number, None)
        if spent is not None:
            changes = {"spent": spent, "time_s": round(self.elapsed_s, 3)}
            self._write(self._entries[number].model_copy(update=changes))
        self._settled.set()
        self._settled = asyncio.Event()

    def _reserve(self, role: str, bound: Spent) -> int:
        number = len(self._entries)
        self._write(Entry(number=number, phase=self.phase, role=role, spent=bound, time_s=round(self.elapsed_s, 3)))
        return number

    def _write(self, entry: Entry) -> None:
        self._book(entry)
        if self._journal is not None:
            self._journal.append(entry.model_dump(exclude_defaults=True))

    def _book(self, entry: Entry) -> None:
        if entry.number in self._entries:
            self._used.subtract(_amounts(self._entries[entry.number].spent))
        self._used.update(_amounts(entry.spent))
        self._entries[entry.number] = entry

    def _exceeded(self, asked: Spent, *, without: Spent | None = None) -> str | None:
        """The limit that `asked` would exceed on top of what is used, except for `without`."""
        if self.limits.time_s is not None and self.elapsed_s + self._held_s >= self.limits.time_s:
            return "time_s"
        used, free, held, more = self._used, _amounts(without or Spent()), _amounts(self._held), _amounts(asked)
        for name, limit in _amounts(self.limits).items():
            if more[name] and used[name] - free[name] + held[name] + more[name] > limit:
                return name
        return None

    def _refusal(self, limit: str, asked: Spent) -> BudgetError:
        value = getattr(self.limits, limit)
        unit = next(unit for unit, name in UNITS.items() if name == limit)
        if limit == "time_s":
            used, held, more = self.elapsed_s, self._held_s, ""
        else:
            used, held = getattr(self.spent(), limit), getattr(self._held, limit)
            more = f", and the next step may need {asked_for:,.6g} more" if (asked_for := getattr(asked, limit)) else ""
        kept = f", {held:,.6g} held back for the last evaluation" if held else ""
        return BudgetError(
            f"the budget of {value:,} ({limit}) is spent: {used:,.10g} used or under way{kept}{more}",
            code="budget-spent",
            fix=f'--budget "MORE {unit}"',
        )


def _amounts(source: Spent | BudgetConfig) -> dict[str, int]:
    """The numbers that are set, costs in `_COST_UNITS`."""
    found = source.model_dump(include={"rollouts", "calls", "tokens", "cost_usd"}, exclude_none=True)
    return {name: round(value * _COST_UNITS) if name == "cost_usd" else value for name, value in found.items()}


def _spent(used: Mapping[str, int]) -> Spent:
    return Spent.model_validate({**used, "cost_usd": used.get("cost_usd", 0) / _COST_UNITS})


def _total(entries: Iterable[Entry]) -> Spent:
    used = Counter[str]()
    for entry in entries:
        used.update(_amounts(entry.spent))
    return _spent(used)


def read_spent(path: Path) -> dict[tuple[str, str], Spent]:
    """Return what a run has used by its `ledger/spent.jsonl`, by phase and role, without damaged entries."""
    # A later line of a number is the use after its reservation.
    latest = {entry.number: entry for entry in Records(path, Entry).read(skip_damage)}
    found = defaultdict[tuple[str, str], list[Entry]](list)
    for entry in latest.values():
        found[entry.phase, entry.role].append(entry)
    return {key: _total(entries) for key, entries in found.items()}


# --- engines and agents behind a budget -------------------------------------------------------------------------------


@dataclass
class _Asked:
    """Requests of one rollout to budgeted engines: the dollars, and the error of a request that had no room."""

    cost_usd: float = 0.0
    refused: list[BudgetError] = field(default_factory=list)


_asked: ContextVar[_Asked | None] = ContextVar("asked", default=None)  # by the rollout under way


class BudgetedEngine:
    """An engine whose requests are counted. Prices of prompt and completion are US dollars per million tokens."""

    waits = True  # for room under a limit, until other requests have settled

    def __init__(self, engine: Engine, budget: Budget, prices: tuple[float, float] = (0.0, 0.0)) -> None:
        self.engine, self.budget, self._prices = engine, budget, prices
        self.name, self.token_exact = engine.name, engine.token_exact

    @property
    def codec(self) -> Codec | None:
        """The engine's codec, which may be set later."""
        return getattr(self.engine, "codec", None)

    @property
    def paused(self) -> Any:
        """The context that holds requests while weights change, if the engine has it."""
        return getattr(self.engine, "paused", None)

    async def sample(self, request: Request) -> Call:
        """Answer a request; raises `BudgetError` if its upper bound has no room."""
        if request.max_tokens is None and {"tokens", "cost_usd"} & _amounts(self.budget.limits).keys():
            # Without a limit of its own a reply has no upper bound.
            request = replace(request, capped=True)
        prompt, replies = prompt_bound(request), (request.options or {}).get("n") or 1
        bound = self._priced(prompt, request.sampling.max_tokens * replies)
        asked = _asked.get() or _Asked()
        try:
            number = await self.budget.reserve(request.role, bound, wait=self.waits)
        except BudgetError as error:
            asked.refused.append(error)
            raise
        # A canceled request may have used all that was reserved.
        used: Spent | None = None
        try:
            call = await self.engine.sample(request)
            usage = call.usage
            if usage.prompt_tokens or usage.completion_tokens:
                used = Spent(calls=1, tokens=usage.prompt_tokens + usage.completion_tokens, cost_usd=usage.cost_usd)
            elif call.sent:
                # A server that counts nothing may have thought unseen: only the bound is certain.
                used = bound
            else:
                # A function counts nothing: bytes stand in for tokens.
                used = self._priced(prompt, len(call.completion.encode("utf-8", "replace")))
            return call
        except EngineError:
            used = Spent(calls=1)
            raise
        finally:
            asked.cost_usd += used.cost_usd if used else 0.0
            self.budget.settle(number, used)

    async def close(self) -> None:
        """Close the engine."""
        await self.engine.close()

    def _priced(self, prompt: int, completion: int) -> Spent:
        cost_usd = (prompt * self._prices[0] + completion * self._prices[1]) / 1e6
        return Spent(calls=1, tokens=prompt + completion, cost_usd=cost_usd)


class ServedBudgetedEngine(BudgetedEngine):
    """An engine with a server, whose other APIs are counted too: by what it says that they used."""

    engine: ServedEngine

    async def forward(self, request: ForwardedRequest) -> ForwardedReply:
        """Pass a request on; raises `BudgetError` if it has no room. What its reply costs is known afterwards only."""
        # A text is at least as long as its tokens.
        bound = Spent(calls=1, tokens=len(request.body) if "json" in request.content_type else 0)
        number = await self.budget.reserve("api", bound, wait=True)
        asked, used = _asked.get() or _Asked(), None
        try:
            found = await self.engine.forward(request)
            tokens = found.usage.prompt_tokens + found.usage.completion_tokens
            used = Spent(calls=1, tokens=tokens, cost_usd=found.usage.cost_usd)
            asked.cost_usd += used.cost_usd
            return found
        except EngineError:
            used = Spent(calls=1)
            raise
        finally:
            self.budget.settle(number, used)


class LockstepBudgetedEngine(BudgetedEngine):
    """An engine that samples when every live trajectory waits for it: none may wait for room instead."""

    waits = False
    engine: LockstepEngine

    def join(self, order: int) -> None:
        """Pass on to the engine."""
        self.engine.join(order)

    def leave(self, order: int) -> None:
        """Pass on to the engine."""
        self.engine.leave(order)


class BudgetedAgent:
    """An agent whose runs are counted as rollouts before they start, and whose other costs are when they are known."""

    def __init__(self, agent: Agent, budget: Budget) -> None:
        self.agent, self.budget, self.name = agent, budget, agent.name

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        """Run once, uncounted if its first request was refused.

        An agent of your own may ask models that midstream does not know of: what its trajectory cost beyond what its
        engines counted is booked too. Raises `BudgetError` at the limit on rollouts, and where the agent continued
        without a reply that a limit had refused.
        """
        number, asked = self.budget.start_rollout(), _Asked()
        token = _asked.set(asked)
        try:
            found = await self.agent.run(task, context)
        finally:
            _asked.reset(token)
        other = found.cost_usd - asked.cost_usd
        if round(other * _COST_UNITS) > 0:
            self.budget.settle(number, Spent(rollouts=1, cost_usd=other))
        if ended_by_budget(found) and not found.calls:
            self.budget.settle(number, Spent())
        if asked.refused and found.status == "ok":
            raise asked.refused[0]
        return found

    async def close(self) -> None:
        """Close the agent."""
        await self.agent.close()


def budgeted(engine: Engine, budget: Budget, prices: tuple[float, float] = (0.0, 0.0)) -> BudgetedEngine:
    """Put an engine behind a budget."""
    kind = BudgetedEngine
    if isinstance(engine, LockstepEngine):
        kind = LockstepBudgetedEngine
    elif isinstance(engine, ServedEngine):
        kind = ServedBudgetedEngine
    return kind(engine, budget, prices)


def prompt_bound(request: Request) -> int:
    """An upper bound of a request's prompt tokens: a token is at least one byte, a template adds a few."""
    texts = [request.prompt, *(message.content for message in request.messages)]
    # The fields of a message are its tool calls, its reasoning, its parts.
    fields = (message.fields for message in request.messages)
    texts += [json.dumps(dict(part)) for part in (request.json_schema, *request.tools, *fields) if part]
    length = sum(len(text.encode("utf-8", "replace")) for text in texts)
    contents = (message.fields.get("content") for message in request.messages)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    length += _PER_MEDIA * sum(isinstance(part, dict) and part.get("type") != "text" for part in parts)
    # A request with token ids may be sent as ids or as text.
    return max(length + _PER_MESSAGE * len(request.messages) + _PER_REQUEST, len(request.prompt_ids))


# --- trajectories that a budget ended ---------------------------------------------------------------------------------


def ended_by_budget(trajectory: Trajectory) -> bool:
    """Return whether a spent budget ended the trajectory."""
    return trajectory.error is not None and trajectory.error.type == BudgetError.__name__


def require_within_budget(trajectories: Sequence[Trajectory]) -> None:
    """Raise the `BudgetError` that ended one of them."""
    for trajectory in trajectories:
        if trajectory.error is not None and ended_by_budget(trajectory):
            # A trajectory keeps the text of its error.
            what, _, fix = trajectory.error.message.partition("\n  fix: ")
            raise BudgetError(what, code="budget-spent", fix=fix)
