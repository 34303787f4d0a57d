"""tau-bench: a customer, a company's rules, and functions on its database; airline (50 tests) and retail (115).

    [tasks]
    type = "tau_bench"
    path = "tau-bench"      # a clone of https://github.com/sierra-research/tau-bench
    engine = "customer"     # the model that acts as the user

Judged as tau-bench does: at the end the whole database must equal the database after the task's own calls, and the
texts that the task names must occur in the agent's messages (without commas, in lower case). A conversation counts only
if the user ends it or the agent hands it over to a person, within `max_steps`.

Agents that call nothing succeed at many tasks, those where refusing is right: `do_nothing` in an outcome marks these.
Upstream's own model of a user has another prompt, so results are not comparable with its leaderboard; its authors also
report that some of its tasks are mistaken.

Differences from upstream: the calculator is midstream's own (upstream evaluates the model's text as Python); every call
of a reply is made, not only the first; a call that the agent rejects, because its arguments are invalid, is no step.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field, JsonValue

from midstream.core.component import Context, TasksConfig
from midstream.core.errors import RecipeError
from midstream.core.protocols import OVER, Engine, Request, ToolResult, UserTurn
from midstream.core.seeds import derive_seed
from midstream.core.task import Task
from midstream.core.text import spoken
from midstream.core.trajectory import Call, Message, Sampling
from midstream.sandbox.arithmetic import NotArithmetic, evaluate
from midstream.tasks.finite import Finite
from midstream.tasks.functions import Invocation, StateFunction, matched_calls
from midstream.tasks.tau.package import SPLITS, TRANSFER, Domain, Scripted, digests, load_domain

STOP = "###STOP###"  # tau-bench's mark of a user who has what they wanted, or gives up
_GREETING = "Hello, what can I do for you?"
_ROLE = """You play a customer who writes to a company's support agent. This is who you are and what you want:

{instruction}

How to play:
- Write one short message at a time, as this person would, in your own words; never quote the lines above.
- Say only what is needed now; let the agent ask for the rest.
- Know nothing but what stands above. Asked for anything else, say that you don't know or don't have it.
- Stay with what you want, and with the manner described.
- As soon as all that you want is done, or you were handed over to a person, write {stop} and nothing else."""


class Config(TasksConfig):
    """Path of a clone of tau-bench, its domains (`families`), and limits of a conversation.

    `sampling` is that of the user's model; upstream leaves it to the provider, whose default is temperature 1.
    `max_steps` bounds an agent's calls and replies together, as upstream. `output_tokens` bounds a function's result.
    Retail has a train split (500 tasks) and a validation split (its "dev", 20); the airline has only tests.
    """

    asks = "always"
    dialogues = True

    path: Path
    families: tuple[Literal["airline", "retail"], ...] = Field(default=("airline", "retail"), min_length=1)
    max_steps: int = Field(default=30, ge=1)
    output_tokens: int = Field(default=8192, ge=1)
    sampling: Sampling = Sampling(temperature=1.0, max_tokens=512)

    def build(self, context: Context) -> TauBench:
        """Build it."""
        source = TauBench(self)
        if context.engine is not None:  # without one, tasks can be listed but no dialogue opened
            source.played_by(context.engine)
        return source


class TauBench(Finite):
    """The conversations as tasks; a `core.protocols.TaskSource` and `core.protocols.Dialogues`.

    `users` makes the user of each dialogue; `played_by` makes a model the user.
    """

    def __init__(self, config: Config, users: Users | None = None) -> None:
        self.config, self.users = config, users
        super().__init__("tau-bench", [split for split in SPLITS if split == "test" or "retail" in config.families])
        self._domains: dict[str, Domain] = {}
        self._solved: dict[str, dict[str, str]] = {}

    def played_by(self, engine: Engine) -> None:
        """Make a model the user of all dialogues."""
        sampling = self.config.sampling
        self.users = lambda instruction, seed: ModelUser(engine, sampling, instruction, seed)

    def load(self, split: str) -> list[Task]:
        """Make the split's tasks, domain by domain.

        The question is what the user wants, the answer the calls and texts that do it, both for people: an agent sees
        only the user's messages.

        Raises:
            RecipeError: tau-bench cannot be read.
        """
        tasks: list[Task] = []
        for name in dict.fromkeys(self.config.families):
            for place, scripted in enumerate(self._domain(name).tasks.get(split, ())):
                calls = [f"{call.name}({json.dumps(call.arguments)})" for call in scripted.actions]
                tasks.append(
                    Task(
                        id=f"{name}-{split}-{place}",
                        question=scripted.instruction,
                        answer="\n".join([*calls, *scripted.outputs]) or "(nothing to call)",
                        reward="dialogue",
                        family=name,
                        metadata={"domain": name, "split": split, "place": place},
                    )
                )
        return tasks

    def open(self, task: Task, *, seed: int) -> TauDialogue:
        """Open a dialogue with a new user and database.

        Raises:
            RecipeError: there is no user.
        """
        if self.users is None:
            raise RecipeError(
                "tau-bench has no user: a conversation needs a model for its customer",
                code="engine-missing",
                fix="name one of the recipe's engines as `engine` of its tasks",
            )
        return TauDialogue(self, task, self.users(self.scripted(task).instruction, seed))

    def domain_of(self, task: Task) -> Domain:
        """The domain of a task."""
        return self._domain(str(task.metadata["domain"]))

    def scripted(self, task: Task) -> Scripted:
        """Tau-bench's own entry of a task, with its calls."""
        place = task.metadata["place"]
        assert isinstance(place, int)
        return self.domain_of(task).tasks[str(task.metadata["split"])][place]

    def solved(self, task: Task) -> dict[str, str]:
        """Digests of the tables after the task's own calls; made once for each task."""
        if task.id not in self._solved:
            database = Database(self.domain_of(task))
            for action in self.scripted(task).actions:
                if action.name != TRANSFER:
                    database.call(action)
            self._solved[task.id] = digests(database.tables)
        return self._solved[task.id]

    def solved_by_nothing(self, task: Task) -> bool:
        """Whether an agent succeeds at a task that calls no function and writes nothing of use."""
        return not self.scripted(task).outputs and self.solved(task) == self.domain_of(task).start

    def _domain(self, name: str) -> Domain:
        if name not in self._domains:
            self._domains[name] = load_domain(self.config.path, name)
        return self._domains[name]


class Database:
    """A new copy of a domain's tables, and calls on them."""

    def __init__(self, domain: Domain) -> None:
        self._functions = domain.functions
        self.tables = domain.database()

    def call(self, invocation: Invocation) -> ToolResult:
        """Make a call. Its text is upstream's; `ok` is False where the function refuses.

        The calculator has upstream's text and rounding, but does not run Python.
        """
        arguments: dict[str, Any] = copy.deepcopy(dict(invocation.arguments))
        if invocation.name == "calculate":
            try:
                text = str(round(float(evaluate(str(arguments.get("expression", "")))), 2))
            except (NotArithmetic, ArithmeticError) as error:
                text = f"Error: {error}"
            return ToolResult(text=text, ok=not text.startswith("Error"))
        try:
            text = str(self._functions[invocation.name].invoke(data=self.tables, **arguments))
        except Exception as error:  # noqa: BLE001 - upstream's functions raise anything on wrong arguments
            text = f"Error: {error}"
        return ToolResult(text=text, ok=not text.startswith("Error"))


class TauDialogue:
    """One rollout's user and database; a `core.protocols.Dialogue`."""

    def __init__(self, source: TauBench, task: Task, user: User) -> None:
        domain, config = source.domain_of(task), source.config
        self.system = domain.rules
        self._scripted, self._solved = source.scripted(task), source.solved(task)
        self._do_nothing = source.solved_by_nothing(task)
        self._database, self._user, self._max_steps = Database(domain), user, config.max_steps
        self._made: list[Invocation] = []
        self._written: list[str] = []
        self._ended: Literal["", "stopped", "transferred"] = ""
        self._steps = 0
        self.functions = {
            function.name: StateFunction(
                name=function.name,
                description=function.description,
                parameters=function.parameters,
                act=self._call,
                output_tokens=config.output_tokens,
            )
            for function in domain.functions.values()
        }

    async def begin(self) -> UserTurn:
        """Return the user's first message."""
        return await self._user_turn(None)

    async def reply(self, text: str) -> UserTurn:
        """Return the user's answer; over once the user stops, the agent has handed over, or no step is left."""
        self._steps += 1
        if self._ended or self._steps > self._max_steps:
            return OVER
        self._written.append(text)
        turn = await self._user_turn(text)
        if STOP in turn.text:
            self._ended = "stopped"
        return replace(turn, over=bool(self._ended) or self._steps == self._max_steps)

    def outcome(self) -> dict[str, JsonValue]:
        """Whether the database and the agent's messages are right, and how much of each matched."""
        found = digests(self._database.tables)
        right = [name for name, digest in self._solved.items() if found[name] == digest]
        written = [text.lower().replace(",", "") for text in self._written]
        outputs = self._scripted.outputs
        missing = [output for output in outputs if not any(output.lower() in text for text in written)]
        expected = [action for action in self._scripted.actions if action.name != TRANSFER]
        if not self._ended:
            why = "the conversation was not brought to an end"
        elif len(right) < len(self._solved):
            why = "the database differs"
        else:
            why = f"not said: {', '.join(missing)}" if missing else ""
        facts: dict[str, JsonValue] = {
            "state": [len(right), len(self._solved)],
            "calls": [matched_calls(self._made, expected), len(expected)],
            "outputs": [len(outputs) - len(missing), len(outputs)],
            "passed": not why,
            "why": why,
        }
        return {
            "success": not why,
            "why": why,
            "turns": [facts],
            "ended": self._ended,
            "do_nothing": self._do_nothing,
        }

    async def close(self) -> None:
        """Do nothing: the user's engine is closed where it was made."""

    async def _user_turn(self, text: str | None) -> UserTurn:
        message, calls = await self._user.say(text)
        return UserTurn(text=message, tools=list(self.functions.values()), calls=calls)

    def _call(self, invocation: Invocation) -> ToolResult:
        """Take a step of the agent on the database, until the conversation is over."""
        self._steps += 1
        if self._ended or self._steps > self._max_steps:
            return ToolResult(text="Error: the conversation is over", ok=False)
        self._made.append(invocation)
        if invocation.name == TRANSFER:
            self._ended = "transferred"
        return self._database.call(invocation)


class User(Protocol):
    """The user of one dialogue."""

    async def say(self, heard: str | None) -> tuple[str, tuple[Call, ...]]:
        """Return the user's answer to the agent's message (None at the start), and the requests behind it.

        A text with `STOP` in it ends the dialogue. Raises `EngineError` if a model fails.
        """
        ...


Users = Callable[[str, int], User]  # from an instruction and a seed to the user of one dialogue


class ModelUser:
    """A model as the user."""

    def __init__(self, engine: Engine, sampling: Sampling, instruction: str, seed: int) -> None:
        self._engine, self._sampling, self._seed = engine, sampling, seed
        role = Message(role="system", content=_ROLE.format(instruction=instruction, stop=STOP))
        self._messages = [role]

    async def say(self, heard: str | None) -> tuple[str, tuple[Call, ...]]:
        """Ask the model for the customer's next message; in its chat the agent is the user."""
        self._messages.append(Message(role="user", content=_GREETING if heard is None else heard))
        request = Request(
            role="user",
            messages=tuple(self._messages),
            sampling=self._sampling,
            seed=derive_seed(self._seed, "user", len(self._messages)),
        )
        call = await self._engine.sample(request)
        text = spoken(call.completion).strip()
        self._messages.append(Message(role="assistant", content=text))
        return text, (call,)
