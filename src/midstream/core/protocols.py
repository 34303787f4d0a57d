"""The seams: what an engine, a tool, a module, an agent, a reward and a learner must be able to do.

Rooms side by side do not import each other; they meet here. Every protocol is structural: a class that has the
methods is one, no base class and no registration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pydantic import JsonValue

from midstream.core.dialogue import Dialogue
from midstream.core.events import Emit, TurnListener, ignore_event
from midstream.core.lessons import NO_LESSONS, Lessons
from midstream.core.memory import Memory
from midstream.core.task import Task
from midstream.core.trajectory import Action, Call, Command, Message, Observation, Sampling, Score, Trajectory, Verdict

if TYPE_CHECKING:
    from midstream.core.component import Context


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request to an engine: chat `messages`, a raw text `prompt`, or `prompt_ids`, exactly these token ids.

    With `prompt_ids` given, `messages` or `prompt` say the same for people and for engines without token ids. `tools`
    are offered to a chat model in its native form. `keep_stop`: the completion's text keeps the stop string that ended
    it, and what its last token holds beyond.

    `seed` makes the sample repeatable where the engine can; `order` is the trajectory's place in its rollout, by which
    a lockstep engine sorts its batches; `json_schema` asks for structured output; `deadline_s` is a time of
    `time.monotonic()`. An engine that streams calls `emit` with each piece of "text", one that retries with "retry".
    """

    role: str
    messages: tuple[Message, ...] = ()
    prompt: str = ""
    prompt_ids: tuple[int, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    sampling: Sampling = Sampling()
    keep_stop: bool = False
    seed: int = 0
    order: int = 0
    json_schema: Mapping[str, Any] | None = None
    deadline_s: float | None = None
    emit: Emit = ignore_event


@runtime_checkable
class Engine(Protocol):
    """Samples tokens from a model, remote or in process.

    `token_exact` says whether its calls carry the sampled token ids and log-probabilities: only then can they be
    trained on.
    """

    name: str
    token_exact: bool

    async def sample(self, request: Request) -> Call:
        """Answer one request. Once retries are spent: `EngineError`, with the failed call in `calls`.

        Where the engine can, `DeadlineError` when `request.deadline_s` passes first.
        """
        ...

    async def close(self) -> None:
        """Release connections; the engine is not used afterwards."""
        ...


class Codec(Protocol):
    """Text to token ids and back, as the model behind an engine reads them. An engine that has one has it as `codec`.

    With it a stream is continued token by token: what was sampled is never tokenised again.
    """

    def encode(self, request: Request) -> Sequence[int]:
        """The prompt's ids: its `prompt_ids`, or its text, or its messages and tools through the chat template."""
        ...

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Ids of text that is put into a stream; special tokens of the model in it are plain text."""
        ...

    def encode_reply(self, messages: Sequence[Message], *, ended: bool) -> tuple[int, ...]:
        """Ids that the chat template puts between an assistant's message and its next: `messages` and what is around.

        `ended`: the assistant's end token was sampled and is in the stream already.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; an end token at their end is none of it."""
        ...


@runtime_checkable
class LockstepEngine(Protocol):
    """An engine that samples when every live trajectory waits for it, in a fixed order, never by arrival."""

    def join(self, order: int) -> None:
        """The trajectory at place `order` is live: wait for it before sampling."""
        ...

    def leave(self, order: int) -> None:
        """It has ended: wait for it no longer. Once more does nothing."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """What a tool answers: `ok=False` is an answer too ("no document matches"), a broken tool raises.

    `calls` are the requests it made to an engine of its own.
    """

    text: str
    ok: bool = True
    calls: tuple[Call, ...] = ()


@runtime_checkable
class Tool(Protocol):
    """Something an agent can call.

    `parameters` is the JSON schema (type object) of `call`'s arguments; `timeout_s` bounds one call,
    `output_tokens` its text, four characters counted as a token.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    timeout_s: float
    output_tokens: int

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Run once with arguments that satisfy `parameters`; raise `ToolServerError` if the back end failed."""
        ...

    async def close(self) -> None:
        """Release processes and connections."""
        ...


class CodeRunner(Protocol):
    """Runs a command's code where it can reach one tool and nothing else."""

    async def run(self, code: str, tool: Tool) -> tuple[Observation, tuple[Call, ...]]:
        """Run a program in which `tool` is a function by its name; what it printed is the observation.

        The calls are those that the tool made to an engine of its own.

        Code that raises or runs too long is an observation with `status="error"`; raises `ToolServerError` if the tool
        broke, `SandboxError` if the program could not be run.
        """
        ...

    async def close(self) -> None:
        """Release processes."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleContext:
    """What a module gets beside its arguments: its engine, a seed for this turn, its lessons, the time that is left.

    A module passes `emit` along with its requests.
    """

    engine: Engine | None = None
    seed: int = 0
    order: int = 0
    lessons: str = ""
    deadline_s: float | None = None
    emit: Emit = ignore_event


class Planner(Protocol):
    """planner(query, tools, memory) -> action."""

    async def plan(
        self, question: str, tools: Sequence[Tool], memory: Memory, context: ModuleContext
    ) -> tuple[Action, tuple[Call, ...]]:
        """Decide the next sub-goal, tool and context; a malformed decision is an action with `error`."""
        ...


class Executor(Protocol):
    """executor(action, tools) -> command; it never sees the query."""

    async def command(
        self, action: Action, tools: Sequence[Tool], context: ModuleContext
    ) -> tuple[Command, tuple[Call, ...]]:
        """Write the tool call for an action; an invalid one is a command with `error`."""
        ...


class Verifier(Protocol):
    """verifier(query, observation, memory) -> verdict; `memory` does not hold this turn's record yet."""

    async def verify(
        self, question: str, observation: Observation, memory: Memory, context: ModuleContext
    ) -> tuple[Verdict, tuple[Call, ...]]:
        """Judge the newest observation and whether memory and it suffice to answer."""
        ...


class Generator(Protocol):
    """generator(query, memory) -> answer."""

    async def generate(
        self, question: str, memory: Memory, context: ModuleContext
    ) -> tuple[str | None, tuple[Call, ...]]:
        """Write the final answer, or None if there is none to give."""
        ...


@runtime_checkable
class Agent(Protocol):
    """Runs a task over several turns; holds no per-task state, so one object serves any number of runs at once."""

    name: str

    async def run(
        self,
        task: Task,
        tools: Sequence[Tool],
        engines: Mapping[str, Engine],
        *,
        seed: int,
        order: int = 0,
        lessons: Lessons = NO_LESSONS,
        deadline_s: float | None = None,
        listener: TurnListener | None = None,
        dialogue: Dialogue | None = None,
    ) -> Trajectory:
        """Run once. `task` comes without its gold answer; `engines` and `lessons` go by the names of modules.

        `dialogue` is the other side of a task that has one, made for this run alone.
        """
        ...

    async def close(self) -> None:
        """Release what the agent holds beside tools and engines."""
        ...


class Reward(Protocol):
    """Judges a finished trajectory against its task.

    `name` is what tables call it, for example "exact match"; `judged` says that a model decides, so that its numbers
    never stand in one column with those of a rule.
    """

    name: str
    judged: bool

    def check(self, task: Task) -> None:
        """Refuse a task that it cannot score with `RecipeError`; asked before any work, so it costs next to nothing."""
        ...

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """A value in [0, 1], 0 where there is no answer; raise `RewardError` if no score could be given."""
        ...

    async def close(self) -> None:
        """Release processes and connections."""
        ...


class TaskSource(Protocol):
    """Where tasks come from. `families` are those that `sample` draws from; ids are unique in a split.

    Splits are called "train", "validation" and "test", whatever a benchmark's own are; one that is not there is a
    `RecipeError`.
    """

    @property
    def families(self) -> Sequence[str]:
        """What `sample` draws from, in a fixed order."""
        ...

    def sample(self, split: str, count: int, seed: int, weights: Mapping[str, float] | None = None) -> list[Task]:
        """`count` tasks drawn for one training step; `weights` biases the draw by family."""
        ...

    def fixed(
        self,
        split: str,
        *,
        seed: int,
        families: Sequence[str] = (),
        per_family: int | None = None,
        count: int | None = None,
    ) -> list[Task]:
        """A fixed evaluation set of different tasks: all of the split, or those that a draw with `seed` takes.

        `families`: of these alone; `per_family`: so many of each; `count`: so many in all. A source without end makes
        60 of each family where neither is given. Asking for more than there are is a `RecipeError`.
        """
        ...


@runtime_checkable
class World(Protocol):
    """A task source that is a world made up for offline use, with facts that a tool can search."""

    def documents(self) -> Iterable[tuple[str, str]]:
        """(id, text) of every fact, in a fixed order."""
        ...


@runtime_checkable
class TrainableWorld(World, Protocol):
    """A world that a model made from nothing can learn in; the settings of its tasks name a `teacher`."""

    def attach(self, model: Any) -> None:
        """Give a model that is about to be trained the hooks it needs; again does nothing.

        Before each step a learner calls `model.before_step(seed)`, where the model has it.
        """
        ...

    def lessons(self, task_ids: Sequence[str], share: float, seed: int) -> Mapping[str, Lessons]:
        """Lessons for the prompts of a `share` of warm-start transcripts, by task id; the teacher follows them."""
        ...

    def check_validation(self, tasks: Sequence[Task], least: float) -> None:
        """Before any work: refuse validation tasks that `check_warm_start` could not use, with `RecipeError`."""
        ...

    async def check_warm_start(self, environment: Any, tasks: Sequence[Task], least: float, seed: int) -> str:
        """Check a warm-started model before reinforcement; returns a line for the log.

        Args:
            environment: a `rollout.Environment` around the model.
            tasks: the validation tasks.
            least: the lowest result that passes, in [0, 1] (`warm_start.min_copy_rate`).
            seed: seed of the rollouts.

        Raises:
            TrainingError: the model learned too little to continue.
        """
        ...


@runtime_checkable
class Plays(Protocol):
    """A task source on whose tasks a program can play a model (engine type "simulated")."""

    def play(self, role: str, skill: float, context: Context) -> Callable[[Sequence[Message], int], str]:
        """The reply to messages and a seed, of the model that plays `role`, one of the settings' `plays`."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One training sequence: a prompt and what follows: one sampled completion, or several with others' text between.

    `sampled[j]` says that the policy drew `completion_ids[j]`; the empty tuple, that it drew them all. The others (tool
    output, a user's words) have no part in the loss. `old_logprobs[j]` belongs to `completion_ids[j]`, 0 where that was
    not sampled; `advantage` is one number for all of them; `weight` multiplies every sampled token's policy loss (it
    holds the normaliser: 1/|a|, 1/T, 1/trajectories ...), `kl_weight` its KL term. `temperature` is the one that both
    log-probabilities, old and new, are taken at.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    sampled: tuple[bool, ...] = ()
    old_logprobs: tuple[float, ...]
    advantage: float
    weight: float
    kl_weight: float
    temperature: float = 1.0
    trajectory_id: str = ""

    @property
    def length(self) -> int:
        """All its tokens."""
        return len(self.prompt_ids) + len(self.completion_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class LossStats:
    """Sums over the tokens of one `forward_backward`, for the log; `gap_sum` is of |log-probability - recorded one|.

    `tokens` are those with a loss. `total_tokens` are all of the rows', prompts too; `unique_tokens` those of their
    prefix trie, where what rows have in common is there once. Both are 0 where a learner does not count them.
    """

    loss: float = 0.0
    kl_sum: float = 0.0
    gap_sum: float = 0.0
    clipped: int = 0
    tokens: int = 0
    total_tokens: int = 0
    unique_tokens: int = 0


class Learner(Protocol):
    """Updates weights. Gradients of successive `forward_backward` calls add up until `optimizer_step`."""

    def before_step(self, seed: int) -> None:
        """Called before a step's rollouts: a model that changes its weights between steps does so now."""
        ...

    def forward_backward(self, rows: Sequence[Row], loss: Any) -> LossStats:
        """Add the gradient of `loss` (a training.losses.PolicyLoss) over `rows`."""
        ...

    def optimizer_step(self, learning_rate: float) -> float:
        """Clip, step, clear the gradient; returns its norm before clipping."""
        ...

    def logprobs(self, rows: Sequence[Row], *, reference: bool = False) -> list[tuple[float, ...]]:
        """Log-probabilities of each row's completion tokens under the policy or the reference policy."""
        ...

    def export_weights(self, directory: Path) -> None:
        """Write the trainable weights so that an engine can load them."""
        ...

    def save(self, directory: Path) -> None:
        """Write everything that `load` needs to go on bit for bit."""
        ...

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote."""
        ...
