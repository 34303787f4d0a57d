"""An agent that runs elsewhere: its program opens sessions at the gateway, and ends them (`sessions.py` serves them).

    POST /v1/sessions {"id": "mine-1"}     -> {"id", "key", "base_url", "model", "task": {"id", "question", "metadata"}}
    ... its requests, at base_url with the key
    POST /s/KEY/end {"answer": "42"}       or {"error": "why it broke"}; with "reward" and "feedback" if it has its own

A run of midstream's offers each of its places (a task and its number in the group) to the next caller.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from midstream.components.agent_record import Outcome
from midstream.components.component import Context
from midstream.core.data import JsonObject, problems_of, unfit
from midstream.core.task import Task
from midstream.gateway.forms import FormError
from midstream.gateway.server import Gateway
from midstream.gateway.session import AgentSession
from midstream.gateway.session_agent import Address, SessionAgent, gateway_of
from midstream.gateway.settings import SessionSettings

# Seconds that a caller is held for a free place; then it asks again.
_WAIT_S = 30.0
_LONGEST_ID = 200


class ExternalSettings(SessionSettings):
    """An agent that runs elsewhere."""

    asks = "always"

    def build(self, context: Context) -> ExternalAgent:
        """The agent."""
        return ExternalAgent(self, gateway_of(context))


@dataclass(kw_only=True)
class _Place:
    """A run that waits for a caller, or has one."""

    session: AgentSession
    task_id: str
    # What the caller gets.
    shown: JsonObject
    # Which the caller gave.
    id: str = ""


class _Places:
    """The places of a run; agents of training and evaluation share them, and callers serve both."""

    def __init__(self) -> None:
        self.free: deque[_Place] = deque()
        self.taken: dict[str, _Place] = {}  # by the caller's id
        self.runs: dict[str, asyncio.Task[str]] = {}  # of callers' own tasks, by the caller's id
        self.lost: dict[str, str] = {}  # why such a task's run ended before it had a place
        self.ended: set[str] = set()
        self.changed = asyncio.Condition()


class ExternalAgent(SessionAgent):
    """Offers each of its runs to callers; `gateway.opener` is set to what they reach."""

    waits = True

    def __init__(self, settings: SessionSettings, gateway: Gateway) -> None:
        super().__init__("external", settings, gateway)
        self._start: Callable[[Task], Awaitable[str]] | None = None
        other = getattr(gateway.opener, "__self__", None)
        self._places = other._places if isinstance(other, ExternalAgent) else _Places()
        gateway.opener = self.open

    def take_tasks(self, start: Callable[[Task], Awaitable[str]], ended: Iterable[str]) -> None:
        """Let callers bring tasks; ids that have `ended` are not given again.

        `start` runs a task's session and records it; its result is why that failed, or "".
        """
        self._start = start
        self._places.ended.update(ended)

    async def drive(self, task: Task, session: AgentSession, address: Address) -> Outcome:
        """Offer the run, and wait until its caller ends it."""
        shown: JsonObject = {"key": address.api_key, "base_url": address.base_url, "model": address.model}
        shown |= {"anthropic_base_url": address.anthropic_base_url}
        shown["task"] = {"id": task.id, "question": task.question, "metadata": task.metadata}
        place = _Place(session=session, task_id=task.id, shown=shown)
        session.ended = asyncio.get_running_loop().create_future()
        session.recorded = self._places.runs.get(task.id)
        async with self._places.changed:
            self._places.free.append(place)
            self._places.changed.notify_all()
        try:
            return await session.ended
        finally:
            if place in self._places.free:
                self._places.free.remove(place)
            self._places.taken.pop(place.id, None)
            if place.id:
                self._places.ended.add(place.id)

    async def _run(self, start: Callable[[Task], Awaitable[str]], task: Task) -> str:
        """Run a caller's own task, and answer the caller if that ends before it has a place."""
        why = await start(task)
        del self._places.runs[task.id]
        async with self._places.changed:
            if task.id not in self._places.ended:
                self._places.lost[task.id] = f"its run ended before it began: {why or 'midstream show RUN says why'}"
                self._places.changed.notify_all()
        return why

    async def open(self, body: object) -> JsonObject:
        """Give the next free place to a caller; a caller that repeats its `id` gets the same one again.

        Where callers bring a `task` of their own, the place is that task's. Raises `FormError`.
        """
        body = body if isinstance(body, dict) else {}
        if reason := unfit(body):
            raise FormError("invalid_value", f"it cannot be kept: {reason}", None)
        name = body.get("id") or secrets.token_hex(8)
        if not isinstance(name, str) or len(name) > _LONGEST_ID:
            raise FormError("invalid_type", f"a text of at most {_LONGEST_ID} characters is needed", "id")
        if name in self._places.ended:
            raise FormError("session-ended", "the session with this id has ended", "id", status=409)
        if ("task" in body) != (self._start is not None):
            words = "is needed, with a question" if self._start else "is not taken: this run hands out its own"
            raise FormError("invalid_value", f"a task {words}", "task")
        if name not in self._places.taken:
            if self._start is not None and name not in self._places.runs and name not in self._places.lost:
                try:
                    task = Task.model_validate({"answer": "", **body["task"], "id": name})
                except (TypeError, ValidationError) as failure:
                    problems = problems_of(failure) if isinstance(failure, ValidationError) else ["an object is needed"]
                    raise FormError("invalid_value", "; ".join(problems), "task") from failure
                self._places.runs[name] = asyncio.create_task(self._run(self._start, task))

            def fits(place: _Place) -> bool:
                return self._start is None or place.task_id == name

            try:
                async with asyncio.timeout(_WAIT_S), self._places.changed:
                    await self._places.changed.wait_for(
                        lambda: name in self._places.taken | self._places.lost or any(map(fits, self._places.free))
                    )
                    if why := self._places.lost.get(name):
                        raise FormError("session-lost", why, None, status=503)
                    if name not in self._places.taken:
                        place = self._places.taken[name] = next(filter(fits, self._places.free))
                        self._places.free.remove(place)
                        place.id = name
                        place.session.begin()
                        # The same caller may ask twice.
                        self._places.changed.notify_all()
            except TimeoutError:
                words = "no session is wanted now: the run updates weights, or is at its end; ask again"
                raise FormError("no-session-wanted", words, None, status=503) from None
        return {"id": name, **self._places.taken[name].shown}
