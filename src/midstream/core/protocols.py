"""Protocols: what an engine, a tool, a module, an agent, a reward, a task source and a learner must implement.

Packages of one layer do not import each other; they use these protocols instead. All are structural: a class that has
the methods satisfies the protocol, without a base class and without registration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pydantic import JsonValue

from midstream.core.errors import RecipeError
from midstream.core.events import Emit, TurnEvent, TurnListener, ignore_event
from midstream.core.lessons import Lessons
from midstream.core.schedule import RunProgress
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.trajectory import (
    Action,
    Call,
    Command,
    Memory,
    MemoryRecord,
    Message,
    Sampling,
    Score,
    Trajectory,
    Verdict,
)

# The place of the running trajectory in its rollout: a tool's request to an engine in this process has it as `order`.
ORDER: ContextVar[int] = ContextVar("order", default=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request to an engine."""

    role: str  # the module that asks, e.g. "planner"
    messages: tuple[Message, ...] = ()  # the chat to answer
    prompt: str = ""  # the raw text to continue, instead of `messages`
    # Exact token ids to continue. `messages` or `prompt` then hold the same prompt as text, for traces and for engines
    # without token ids.
    prompt_ids: tuple[int, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()  # JSON schemas, offered to a chat model in its native form
    continues: bool = False  # the last message is the beginning of the reply (engines with a codec)
    sampling: Sampling = Sampling()
    keep_stop: bool = False  # keep the stop string that ended the completion in its text, with the rest of its token
    seed: int = 0  # makes the sample repeatable if the engine supports it
    order: int = 0  # index of the trajectory in its rollout; a `LockstepEngine` sorts its batches by it
    json_schema: Mapping[str, Any] | None = None  # schema of the structured output to ask for
    # What an agent of another program sets, as fields of a chat completion: a server gets these in place of `sampling`.
    # `sampling` has their values, and defaults for what they leave open. None for midstream's own requests.
    options: Mapping[str, Any] | None = None
    deadline_s: float | None = None  # when to give up, as a time of `time.monotonic()`
    emit: Emit = ignore_event  # called with each piece of "text" by an engine that streams, with "retry" on a retry

    @property
    def max_tokens(self) -> int | None:
        """The most new tokens; None if an agent of another program sets no limit."""
        return self.sampling.max_tokens if self.options is None or "max_tokens" in self.options else None

    def answered(self, engine: str, completion: str, **fields: Any) -> Call:
        """The record of an engine's answer; `fields` are others of a `Call`."""
        of_request = {name: getattr(self, name) for name in ("role", "prompt", "messages", "sampling")}
        return Call(engine=engine, completion=completion, **of_request, **fields)


@runtime_checkable
class Engine(Protocol):
    """Samples tokens from a model, remote or in process.

    `token_exact` is true if its calls carry the sampled token ids and log-probabilities, which training needs. One that
    can use any of a request's `options` has `takes_options = True`.
    """

    name: str
    token_exact: bool

    async def sample(self, request: Request) -> Call:
        """Answer one request.

        Raises:
            EngineError: every attempt failed; `calls` holds the failed call.
            DeadlineError: `request.deadline_s` passed first (from engines that watch it).
        """
        ...

    async def close(self) -> None:
        """Release connections; nothing by default. The engine is not used afterwards."""


class Codec(Protocol):
    """Converts text to token ids and back as an engine's model does; an engine offers it as its attribute `codec`.

    With it, a stream is continued token by token, and sampled text is never tokenized again.
    """

    def encode(self, request: Request) -> Sequence[int]:
        """Ids of a request's prompt: its `prompt_ids`, its text, or its messages and tools in the chat template."""
        ...

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Ids of text that the environment appends; the model's special tokens inside it are encoded as plain text."""
        ...

    def encode_reply(self, messages: Sequence[Message], *, ended: bool) -> tuple[int, ...]:
        """Ids between an assistant's message and its next one: `messages` with the chat template's text around them.

        `ended`: the stream already holds the assistant's end token, because it was sampled.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without an end token at their end."""
        ...


@runtime_checkable
class LockstepEngine(Protocol):
    """An engine that samples once every live trajectory waits for it, in a fixed order rather than by arrival."""

    def join(self, order: int) -> None:
        """Register trajectory number `order` as live: sampling waits for its requests."""
        ...

    def leave(self, order: int) -> None:
        """Remove a trajectory that has ended; removing it again does nothing."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """A tool's answer.

    `ok=False` is still an answer, such as "no document matches"; a broken tool raises instead. `calls` are the requests
    that the tool made to its own engine. `marks` say what a simulated or degraded tool did; no agent sees them.
    """

    text: str
    ok: bool = True
    calls: tuple[Call, ...] = ()
    marks: tuple[str, ...] = field(default=(), repr=False)


@runtime_checkable
class Tool(Protocol):
    """Something that an agent can call."""

    name: str  # what agents call it
    description: str  # what it does, as the prompt says it
    parameters: Mapping[str, Any]  # JSON schema (of type object) of the arguments of `call`
    timeout_s: float  # time limit of one call
    output_tokens: int  # limit of a result's text, at four characters a token

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Run the tool with arguments that satisfy `parameters`.

        Raises:
            ToolServerError: the tool's back end failed.
        """
        ...

    async def close(self) -> None:
        """Release processes and connections; a subclass without any inherits this method."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolRun:
    """What a tool of one run is made from: the task with its gold answer, the run's seed, and how far training is.

    `progress` is None outside the steps of training: in evaluations, in a warm start, in `midstream solve`.
    """

    task: Task
    seed: int
    progress: RunProgress | None = None


@runtime_checkable
class PerRun(Protocol):
    """A tool that is another one in each run; the rollout asks for it, and the agent gets that tool alone."""

    def for_run(self, run: ToolRun) -> Tool:
        """Make the tool of one run. It holds nothing that this tool does not, so nobody closes it."""
        ...

    def probabilities(self, progress: RunProgress) -> dict[str, float]:
        """The probabilities at a step, by the names of their settings, for the step's record."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleContext:
    """What every module receives with its arguments: its engine, the seed of this turn, lessons and deadline.

    `order`, `deadline_s` and `emit` are those of its requests. `lessons` is the text for its prompt.
    """

    engine: Engine | None = None
    seed: int = 0
    order: int = 0
    lessons: str = ""
    deadline_s: float | None = None
    emit: Emit = ignore_event

    async def sample(self, request: Request) -> Call:
        """Ask the module's engine, as a part of this run. Raises `RecipeError` if it has none."""
        if self.engine is None:
            what, fix = f"the {request.role} has no engine", f"name one for the {request.role} in the recipe"
            raise RecipeError(what, code="engine-missing", fix=fix)
        request = replace(request, order=self.order, deadline_s=self.deadline_s, emit=self.emit)
        return await self.engine.sample(request)


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


# --- dialogues: a simulated user who speaks in turns, and functions that change the state of one rollout --------------
#
#     begin() -> "Fill the tank." [fillFuelTank, displayCarStatus]    the agent calls functions, then replies
#     reply("The tank is full.") -> "Now start the engine." [...]     ...
#     reply("It runs.") -> over                                        the end; outcome() gives the facts to score
#
# Every attempt at a task opens a new dialogue, so no two rollouts share state.


@dataclass(frozen=True, kw_only=True, slots=True)
class UserTurn:
    """A user's message, and the functions that the agent has from now on.

    `over` is true at the end of the dialogue: the agent does not reply. `calls` are the requests of a model that plays
    the user.
    """

    text: str
    tools: Sequence[Tool] = ()
    over: bool = False
    calls: tuple[Call, ...] = ()


OVER = UserTurn(text="", over=True)


class Dialogue(Protocol):
    """The user and the state of one rollout; calls of its tools change the state. `system` are rules for the agent."""

    system: str

    async def begin(self) -> UserTurn:
        """Return the first message."""
        ...

    async def reply(self, text: str) -> UserTurn:
        """Return the user's answer to the reply that ended the agent's turn.

        Raises:
            EngineError: the model that plays the user failed.
        """
        ...

    def outcome(self) -> dict[str, JsonValue]:
        """Return facts for the reward: "success" (bool), and what the benchmark's check compares."""
        ...

    async def close(self) -> None:
        """Release resources; a subclass without any inherits this method."""


@runtime_checkable
class Dialogues(Protocol):
    """A task source whose tasks are dialogues."""

    def open(self, task: Task, *, seed: int) -> Dialogue:
        """Open a new dialogue of a task with its gold answer; agents see only the messages, never the task."""
        ...


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
    lessons: Lessons = field(default_factory=dict)  # for the prompts, by module name
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
            lessons=self.lessons.get(module, ""),
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


class Reward(Protocol):
    """Scores a finished trajectory against its task.

    `name` is its name in tables, such as "exact match". `judged` is true if a model decides the score; reports never
    put scores of a model and scores of a rule in one column.
    """

    name: str
    judged: bool

    def check(self, task: Task) -> None:
        """Check, before any work and at almost no cost, that a task can be scored.

        Raises:
            RecipeError: it cannot.
        """
        ...

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """Score a trajectory: a value in [0, 1], 0 without an answer.

        Raises:
            RewardError: the judge or scorer failed, so there is no score.
        """
        ...

    async def close(self) -> None:
        """Release processes and connections."""
        ...


class TaskSource(Protocol):
    """Where tasks come from.

    Splits are always called "train", "validation" and "test"; asking for a split that does not exist raises
    `RecipeError`. Task ids are unique within a split.
    """

    @property
    def families(self) -> Sequence[str]:
        """Task families that `sample` draws from, in a fixed order."""
        ...

    def sample(self, split: str, count: int, seed: int, weights: Mapping[str, float] | None = None) -> list[Task]:
        """Draw `count` tasks for one training step; `weights` biases the draw by family."""
        ...

    def fixed(
        self,
        split: str,
        *,
        seed: int,
        families: Sequence[str] = (),  # only these; empty for all
        per_family: int | None = None,  # tasks of each family
        count: int | None = None,  # tasks in all
    ) -> list[Task]:
        """Return a fixed evaluation set of distinct tasks: the whole split, or a sample of it drawn with `seed`.

        An endless source makes 60 tasks a family if neither number is given.

        Raises:
            RecipeError: the split has fewer tasks.
        """
        ...


@runtime_checkable
class World(Protocol):
    """A task source with a made-up world for offline use, whose facts a tool can search."""

    def documents(self) -> Iterable[tuple[str, str]]:
        """(id, text) of every fact, in a fixed order."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One training sequence: a prompt, and the sampled tokens after it, which may alternate with appended text."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]  # the tokens after the prompt, sampled or appended by the environment
    # For each completion token, whether the policy sampled it; empty if it sampled all of them. Appended tokens (tool
    # output, a user's words) have no loss.
    sampled: tuple[bool, ...] = ()
    old_logprobs: tuple[float, ...]  # of each completion token when it was sampled; 0 for appended tokens
    advantage: float  # of every sampled token
    weight: float  # factor of each sampled token's policy loss: the normalizers (1/|a|, 1/T, 1/trajectories, ...)
    kl_weight: float  # factor of each sampled token's KL term
    temperature: float = 1.0  # of both log-probabilities, old and new
    trajectory_id: str = ""  # the trajectory that the row is made from

    @property
    def length(self) -> int:
        """Number of tokens, prompt included."""
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class LossStats:
    """Sums over the tokens of one `forward_backward`, for the log."""

    loss: float = 0.0
    kl_sum: float = 0.0  # of the KL estimates
    gap_sum: float = 0.0  # of |log-probability - recorded log-probability|
    clipped: int = 0  # tokens whose ratio was clipped
    tokens: int = 0  # tokens with a loss
    total_tokens: int = 0  # tokens of all rows, prompts included; 0 if the learner does not count them
    unique_tokens: int = 0  # tokens of the rows' prefix trie, which holds shared prefixes once; 0 likewise


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """The newest weights, for the engine that samples from them (`use_weights`), which may hold them already."""

    version: int
    codec: Codec  # of their model
    export: Callable[[Path], None]  # writes them into a directory
    directory: Path  # where an engine keeps what it hands to a server


class Student(Protocol):
    """The engine of the weights that are trained: what makes rows of text as its model would read it."""

    name: str

    @property
    def codec(self) -> Any:
        """The codec of its model: a `Codec` that also names the tokens that end a completion, as `end_ids`."""
        ...

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of its model, as of the library transformers."""
        ...

    @property
    def positions(self) -> int | None:
        """The most tokens of prompt and completion together, if that is known."""
        ...


class Learner(Protocol):
    """Updates weights. Gradients of successive `forward_backward` calls accumulate until `optimizer_step`."""

    @property
    def why_unshared(self) -> str:
        """Why shared prefixes are computed for each row; "" if they are not, or if the recipe asks for rows."""
        ...

    def before_step(self, seed: int) -> None:
        """Prepare for the rollouts of a step; a model that changes its weights between steps does so here."""
        ...

    def forward_backward(self, rows: Sequence[Row], loss: Any) -> LossStats:
        """Add the gradient of `loss` (a `training.losses.PolicyLoss`) over `rows`."""
        ...

    def optimizer_step(self, learning_rate: float) -> float:
        """Clip the gradient, step, clear the gradient; returns its norm before clipping."""
        ...

    def logprobs(self, rows: Sequence[Row], *, reference: bool = False) -> list[tuple[float, ...]]:
        """Log-probabilities of each row's completion tokens under the policy or the reference policy."""
        ...

    def supervised_step(
        self, rows: Sequence[Row], learning_rate: float, prompt_weight: float = 0.0, *, shared: bool = False
    ) -> float:
        """One step of cross-entropy; returns the loss. With `shared`, common prefixes may be computed once."""
        ...

    def rebase(self) -> None:
        """Make the present weights the reference policy and start with a fresh optimizer."""
        ...

    def publish(self) -> None:
        """Have the engine of the weights sample from the newest, if it does not already."""
        ...

    def export_weights(self, directory: Path) -> None:
        """Write the trainable weights in the form that an engine loads."""
        ...

    def save(self, directory: Path) -> None:
        """Write everything that `load` needs: to continue bit for bit, or as exactly as the server that holds it."""
        ...

    def load(self, directory: Path) -> None:
        """Restore the state that `save` wrote."""
        ...


@runtime_checkable
class Tracker(Protocol):
    """Receives the metrics of a run, as an experiment tracker does; see docs/tracking.md.

    Its methods are called in one thread, in this order: `start`, any number of `log`, `finish`. One that raises is off
    from then on, and the run continues.
    """

    def start(self, run: Mapping[str, Any]) -> str | None:
        """Begin: `run` has `name`, `directory`, `kind`, `recipe`, `seed`, `settings` (every setting) and `id`.

        What it returns is kept in the run directory and is the `id` when the run is resumed; before, `id` is None.
        """
        ...

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics, by name, of a training step or an update; 0 is the evaluation before the first."""
        ...

    def finish(self, status: str) -> None:
        """End, with "finished", "interrupted" or "failed"."""
        ...
