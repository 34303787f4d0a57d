"""The budget: everything that a run uses goes through one budget, which refuses what could pass a limit.

Before a request (`budgeted.py`) its upper bound is reserved; after it what the server counted takes its place. Where a
reservation does not fit while others are under way it waits for them; where it cannot fit at all it is refused. So a
limit is never passed, whatever runs at once, by what servers say that their replies took. Attempts without a usable
reply (too late, cut off, refused) say nothing, and count nothing.

`ledger/spent.jsonl` holds a line for each reservation and one for what became of it, so that a run that was killed
knows what it had used; what was under way then counts at its upper bound. It is never cleared.


Engines and agents behind the budget of a budget: nothing is asked, and no rollout begins, that could pass a limit.

The upper bound of a request: a token is at least one byte of the prompt, a completion has at most `max_tokens`.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from midstream.core.data import Frozen
from midstream.core.errors import BudgetError, EngineError
from midstream.core.metrics import Spent
from midstream.core.protocols import Agent, Codec, Engine, LockstepEngine, Request, Tool
from midstream.core.task import Task
from midstream.core.trajectory import Call, Trajectory
from midstream.practice.settings import BudgetConfig
from midstream.runs.journal import Journal, read_models

HELD_BACK = 1.25  # of what the first evaluation used is kept for the last one, whose prompts hold lessons
_COST_UNITS = 10**11
_PER_MESSAGE, _PER_REQUEST = 16, 128  # tokens that a chat template may add


class Entry(Frozen):
    """One line: what was reserved or, as a later line of the same number, used. `time_s` is the run's until then.

    `phase` is the part of the run ("learning", "gate", "evaluation 0"), `role` who asked, "" for a rollout itself.
    """

    number: int
    phase: str = ""
    role: str = ""
    spent: Spent = Spent()
    time_s: float = 0.0


class Budget:
    """Counts, and refuses. `phase` is what is being done; `open` gives it a place on disk."""

    def __init__(self, limits: BudgetConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self.phase = limits, ""
        self._clock, self._began, self._before_s = clock, clock(), 0.0
        self._entries: dict[int, Entry] = {}
        self._used: Counter[str] = Counter()
        self._under_way: dict[int, bool] = {}  # whether it settles whatever others wait for
        self._waiting: list[asyncio.Future[None]] = []
        self._held, self._held_s = Spent(), 0.0
        self._journal: Journal | None = None

    def open(self, path: Path) -> None:
        """Go on from what `path` says, and write there from now on."""
        self.read(path)
        self._began = self._clock()
        self._journal = Journal(path)

    def read(self, path: Path) -> None:
        """Count what `path` says, too."""
        for entry in read_models(path, Entry):
            self._book(entry)
            self._before_s = max(self._before_s, entry.time_s)

    def close(self) -> None:
        """Close the file; once more does nothing."""
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()

    @property
    def elapsed_s(self) -> float:
        """How long the run has taken, over all its processes."""
        return self._before_s + self._clock() - self._began

    def spent(self) -> Spent:
        """All that was used so far; what is under way at its upper bound."""
        return _spent(self._used)

    def spent_on(self) -> dict[tuple[str, str], Spent]:
        """All that was used so far, by phase and role."""
        found: dict[tuple[str, str], Counter[str]] = {}
        for entry in self._entries.values():
            found.setdefault((entry.phase, entry.role), Counter()).update(_amounts(entry.spent))
        return {key: _spent(used) for key, used in found.items()}

    def hold_back(self, phase: str) -> None:
        """Keep a little more than what `phase` used for later; nothing where it used nothing."""
        entries = [one for one in self._entries.values() if one.phase == phase]
        used, times = _total(entries), [one.time_s for one in entries]
        self._held = Spent(
            rollouts=math.ceil(used.rollouts * HELD_BACK),
            tokens=math.ceil(used.tokens * HELD_BACK),
            cost_usd=used.cost_usd * HELD_BACK,
        )
        self._held_s = (max(times) - min(times)) * HELD_BACK if times else 0.0

    def release(self) -> None:
        """What was held back may be used."""
        self._held, self._held_s = Spent(), 0.0

    def start_rollout(self) -> int:
        """Count a rollout that begins now, under the number given back. Raises `BudgetError` if there may be none."""
        asked = Spent(rollouts=1)
        if limit := self._passed(asked):
            raise self._refusal(limit, asked)
        number = self._next
        self._write(Entry(number=number, phase=self.phase, spent=asked, time_s=round(self.elapsed_s, 3)))
        return number

    async def reserve(self, role: str, bound: Spent, *, wait: bool) -> int:
        """Reserve for a request, and give back the reservation's number; with `wait`, once there is room.

        One without `wait` is of an engine in lockstep, which may answer only when whoever waits here goes on: so what
        it has reserved is not waited for.

        Raises:
            BudgetError: there is no room, and none can come.
        """
        while limit := self._passed(bound):
            if limit == "time_s" or not wait or self._passed(bound, self._coming()):
                raise self._refusal(limit, bound)
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter
        number = self._next
        self._under_way[number] = wait
        self._write(Entry(number=number, phase=self.phase, role=role, spent=bound, time_s=round(self.elapsed_s, 3)))
        return number

    def settle(self, number: int, spent: Spent | None) -> None:
        """What a request or a rollout used in the end; None where nobody knows, which counts as all of it."""
        self._under_way.pop(number, None)
        if spent is not None:
            changes = {"spent": spent, "time_s": round(self.elapsed_s, 3)}
            self._write(self._entries[number].model_copy(update=changes))
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def _next(self) -> int:
        return len(self._entries)

    def _write(self, entry: Entry) -> None:
        self._book(entry)
        if self._journal is not None:
            self._journal.append(entry.model_dump(exclude_defaults=True))

    def _book(self, entry: Entry) -> None:
        if entry.number in self._entries:
            self._used.subtract(_amounts(self._entries[entry.number].spent))
        self._used.update(_amounts(entry.spent))
        self._entries[entry.number] = entry

    def _coming(self) -> Spent:
        """What may become free without anything being refused."""
        return _total([self._entries[number] for number, alone in self._under_way.items() if alone])

    def _passed(self, asked: Spent, without: Spent | None = None) -> str | None:
        """The limit that would be passed if `asked` were used on top, and `without` were not."""
        if self.limits.time_s is not None and self.elapsed_s + self._held_s >= self.limits.time_s:
            return "time_s"
        used, off, held, more = self._used, _amounts(without or Spent()), _amounts(self._held), _amounts(asked)
        for name, limit in _amounts(self.limits).items():
            if more[name] and used[name] - off[name] + held[name] + more[name] > limit:
                return name
        return None

    def _refusal(self, limit: str, asked: Spent) -> BudgetError:
        value = getattr(self.limits, limit)
        used = self.elapsed_s if limit == "time_s" else getattr(self.spent(), limit)
        held = self._held_s if limit == "time_s" else getattr(self._held, limit)
        more = "" if limit == "time_s" else f", and {getattr(asked, limit):,} more were asked for"
        kept = f", {held:,.6g} held back for the last evaluation" if held else ""
        return BudgetError(
            f"the budget of {value:,} ({limit}) is spent: {used:,.10g} used or under way{kept}{more}",
            cause=f"practice.budget.{limit} = {value}",
            fix=f"midstream resume RUN --set practice.budget.{limit}=MORE goes on from here",
        )


def _amounts(one: Spent | BudgetConfig) -> dict[str, int]:
    """The numbers that are not None; dollars as whole billionths of a cent, so that a sum knows no order."""
    found = one.model_dump(include={"rollouts", "calls", "tokens", "cost_usd"}, exclude_none=True)
    return {name: round(value * _COST_UNITS) if name == "cost_usd" else value for name, value in found.items()}


def _spent(used: Mapping[str, int]) -> Spent:
    counts = {name: used.get(name, 0) for name in ("rollouts", "calls", "tokens")}
    return Spent(**counts, cost_usd=used.get("cost_usd", 0) / _COST_UNITS)


def _total(entries: Iterable[Entry]) -> Spent:
    used = Counter[str]()
    for entry in entries:
        used.update(_amounts(entry.spent))
    return _spent(used)


def read_spent(path: Path) -> dict[tuple[str, str], Spent]:
    """What a run's `ledger/spent.jsonl` says was used, by phase and role; reading changes nothing."""
    budget = Budget(BudgetConfig())
    budget.read(path)
    return budget.spent_on()


class BudgetedEngine:
    """An engine whose requests go through a budget. Prices are US dollars per million tokens."""

    waits = True  # for room under a limit, until others have settled

    def __init__(
        self, engine: Engine, budget: Budget, *, price_prompt: float = 0.0, price_completion: float = 0.0
    ) -> None:
        self.engine, self.budget = engine, budget
        self.name, self.token_exact = engine.name, engine.token_exact
        self._price_prompt, self._price_completion = price_prompt, price_completion

    @property
    def codec(self) -> Codec | None:
        """The engine's own: it may be given one later."""
        return getattr(self.engine, "codec", None)

    async def sample(self, request: Request) -> Call:
        """Answer a request. Raises `BudgetError` where its upper bound has no room."""
        prompt = prompt_bound(request)
        bound = self._priced(prompt, request.sampling.max_tokens)
        number = await self.budget.reserve(request.role, bound, wait=self.waits)
        used: Spent | None = None  # a request that was cut off may have used all of it
        try:
            call = await self.engine.sample(request)
            used = self._used(call, prompt)
            return call
        except EngineError:
            used = Spent(calls=1)
            raise
        finally:
            self.budget.settle(number, used)

    async def close(self) -> None:
        """Close the engine."""
        await self.engine.close()

    def _used(self, call: Call, prompt: int) -> Spent:
        """What the server counted, or bytes where it counted nothing."""
        usage = call.usage
        if usage.prompt_tokens or usage.completion_tokens:
            return Spent(calls=1, tokens=usage.prompt_tokens + usage.completion_tokens, cost_usd=usage.cost_usd)
        return self._priced(prompt, len(call.completion.encode("utf-8", "replace")))

    def _priced(self, prompt: int, completion: int) -> Spent:
        cost_usd = (prompt * self._price_prompt + completion * self._price_completion) / 1e6
        return Spent(calls=1, tokens=prompt + completion, cost_usd=cost_usd)


class LockstepBudgetedEngine(BudgetedEngine):
    """One that samples when every live trajectory waits for it: none may wait for room instead."""

    waits = False

    def join(self, order: int) -> None:
        """Passed on."""
        assert isinstance(self.engine, LockstepEngine)
        self.engine.join(order)

    def leave(self, order: int) -> None:
        """Passed on."""
        assert isinstance(self.engine, LockstepEngine)
        self.engine.leave(order)


class BudgetedAgent:
    """An agent whose runs are counted as rollouts before they start."""

    def __init__(self, agent: Agent, budget: Budget) -> None:
        self.agent, self.budget, self.name = agent, budget, agent.name

    async def run(
        self, task: Task, tools: Sequence[Tool], engines: Mapping[str, Engine], *, seed: int, **named: Any
    ) -> Trajectory:
        """Run once; one that could not pay for its first request does not count.

        Raises `BudgetError` where there may be no more rollouts.
        """
        number = self.budget.start_rollout()
        found = await self.agent.run(task, tools, engines, seed=seed, **named)
        if found.error is not None and found.error.type == BudgetError.__name__ and not found.calls:
            self.budget.settle(number, Spent())
        return found

    async def close(self) -> None:
        """Close the agent."""
        await self.agent.close()


def budgeted(
    engine: Engine, budget: Budget, *, price_prompt: float = 0.0, price_completion: float = 0.0
) -> BudgetedEngine:
    """The engine behind the budget."""
    kind = LockstepBudgetedEngine if isinstance(engine, LockstepEngine) else BudgetedEngine
    return kind(engine, budget, price_prompt=price_prompt, price_completion=price_completion)


def prompt_bound(request: Request) -> int:
    """At most so many tokens a request's prompt has: a token is at least one byte, a template adds a few.

    Where it has token ids, they may go out or the text that says the same.
    """
    texts = [request.prompt, *(message.content for message in request.messages)]
    texts += [json.dumps(dict(one)) for one in (request.json_schema, *request.tools) if one]
    length = sum(len(text.encode("utf-8", "replace")) for text in texts)
    return max(length + _PER_MESSAGE * len(request.messages) + _PER_REQUEST, len(request.prompt_ids))
