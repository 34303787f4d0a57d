"""Protocols of agents and of AgentFlow's modules, and the contexts that they run in."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from midstream.core.engine import PIN, Engine, Pin, Request
from midstream.core.errors import RecipeError
from midstream.core.events import Emit, TurnEvent, TurnListener, ignore_event
from midstream.core.seeds import derive_seed
from midstream.core.source import Dialogue
from midstream.core.task import Task
from midstream.core.texts import EXAMPLES, PROMPT, Lessons
from midstream.core.tool import Tool
from midstream.core.trajectory import Action, Call, Command, Memory, MemoryRecord, Sampling, Trajectory, Verdict


def lessons_digest(lessons: Lessons) -> str:
    """A short hash of the texts, equal for equal lessons; "" without lessons."""
    if not lessons:
        return ""
    text = json.dumps(dict(lessons), sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunContext:
    """Everything that one run of an agent gets besides its task."""

    tools: Sequence[Tool] = ()
    # The same tools for another agent run inside this one, by its seed: tools that differ in each run (`PerRun`) draw
    # by the calls of a run, so agent runs that share them would depend on each other's timing.
    tools_for: Callable[[int], Sequence[Tool]] | None = None
    engines: Mapping[str, Engine] = field(default_factory=dict)  # by module name
    seed: int = 0  # of everything random in this run
    order: int = 0  # index of the trajectory in its rollout (`Request.order`)
    pin: Pin | None = field(default_factory=PIN.get)  # the weights that its requests ask for
    lessons: Lessons = field(default_factory=dict)  # learned texts, by place
    deadline_s: float | None = None  # when to give up, as a time of `time.monotonic()`
    listener: TurnListener | None = None  # receives the events of every turn
    dialogue: Dialogue | None = None  # the simulated user and state, opened for this run alone
    # Replaces what an agent of another program asks for: all of it, where its weights are trained, or the temperature.
    sampling: Sampling | float | None = None

    def for_answer(self, answer_s: float) -> RunContext:
        """The same with at least `answer_s` seconds from now, also after the deadline."""
        if self.deadline_s is None:
            return self
        return replace(self, deadline_s=max(self.deadline_s, time.monotonic() + answer_s))

    def begin(self, module: str, turn: int) -> ModuleContext:
        """The context of a module that begins now, with a seed from (run, turn, module); emits "start"."""
        emit = self.emitter(module, turn)
        emit("start", None)
        return ModuleContext(
            engine=self.engines.get(module),
            seed=derive_seed(self.seed, turn, module),
            order=self.order,
            pin=self.pin,
            lessons=self.lessons.get(module, ""),
            examples=self.lessons.get(module + EXAMPLES, ""),
            instructions=self.lessons.get(module + PROMPT, ""),
            deadline_s=self.deadline_s,
            emit=emit,
        )

    def emitter(self, module: str, turn: int) -> Emit:
        """The function that sends a module's events in a turn to the listener."""
        listener = self.listener
        if listener is None:
            return ignore_event
        return lambda kind, value: listener(TurnEvent(turn=turn, role=module, kind=kind, value=value))


@runtime_checkable
class Agent(Protocol):
    """Runs tasks over several turns. It keeps no state of a task: one object serves any number of concurrent runs."""

    name: str

    async def run(self, task: Task, context: RunContext) -> Trajectory:
        """Run a task, which is without its gold answer, once."""
        ...

    async def close(self) -> None:
        """Release what the agent holds; tools and engines are closed by their owner."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleContext:
    """Values that every module receives with its arguments: its engine, the seed of this turn, lessons and deadline.

    Its requests carry `order`, `pin`, `deadline_s` and `emit`. `lessons` and `examples` are texts for its prompt,
    `instructions` replaces those that it has, unless it is "".
    """

    engine: Engine | None = None
    seed: int = 0
    order: int = 0
    pin: Pin | None = None
    lessons: str = ""
    examples: str = ""
    instructions: str = ""
    deadline_s: float | None = None
    emit: Emit = ignore_event

    async def sample(self, request: Request) -> Call:
        """Ask the module's engine, as a part of this run. Raises `RecipeError` if it has none."""
        if self.engine is None:
            what, fix = f"the {request.role} has no engine", f"name one for the {request.role} in the recipe"
            raise RecipeError(what, code="engine-missing", fix=fix)
        request = replace(request, order=self.order, pin=self.pin, deadline_s=self.deadline_s, emit=self.emit)
        started, clock = time.time(), time.monotonic()
        call = await self.engine.sample(request)
        return call.model_copy(update={"started_at": started, "duration_s": time.monotonic() - clock})


class Analyst(Protocol):
    """Analyzes the query before the first turn: analyst(query, tools) -> analysis. An agent may have none."""

    async def analyze(
        self, question: str, tools: Sequence[Tool], context: ModuleContext
    ) -> tuple[str, tuple[Call, ...]]:
        """Say what the query asks for and which tools help."""
        ...


class Planner(Protocol):
    """Decides the next step: planner(query, tools, memory) -> action."""

    async def plan(
        self, question: str, tools: Sequence[Tool], memory: Memory, context: ModuleContext
    ) -> tuple[Action, tuple[Call, ...]]:
        """Decide the next sub-goal, tool and context; a malformed reply gives an action with `error`."""
        ...


class Executor(Protocol):
    """Turns an action into a tool call: executor(action, tools) -> command. It never sees the query."""

    async def command(
        self, action: Action, tools: Sequence[Tool], context: ModuleContext
    ) -> tuple[Command, tuple[Call, ...]]:
        """Write the tool call for an action; an invalid call gives a command with `error`."""
        ...


class Verifier(Protocol):
    """Decides whether to stop: verifier(query, tools, memory, newest turn) -> verdict.

    `newest` is the turn to judge, as memory will hold it and without a verdict; `memory` holds the turns before it.
    """

    async def verify(
        self, question: str, tools: Sequence[Tool], memory: Memory, newest: MemoryRecord, context: ModuleContext
    ) -> tuple[Verdict, tuple[Call, ...]]:
        """Judge the newest turn's result, and whether it and the memory suffice to answer."""
        ...


class Generator(Protocol):
    """Writes the final answer: generator(query, memory) -> answer."""

    async def generate(
        self, question: str, memory: Memory, context: ModuleContext
    ) -> tuple[str | None, tuple[Call, ...]]:
        """Write the final answer; None if there is nothing to answer."""
        ...
