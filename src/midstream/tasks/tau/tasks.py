"""tau-bench: a customer, a company's rules, and functions on its database; airline (50 tests) and retail (115).

    [tasks]
    type = "tau_bench"
    path = "tau-bench"      # a clone of https://github.com/sierra-research/tau-bench
    engine = "customer"     # the model that plays the user

Judged as tau-bench does: at the end the whole database must equal the one that the task's own calls lead to, and the
texts that the task names must stand in what the agent said (commas left out, small letters). A conversation counts only
if the user ends it or the agent hands it over to a person, within `max_steps`.

Agents that call nothing succeed at many tasks, those where refusing is right: `do_nothing` is that baseline, and every
outcome says whether its task is one of them. Upstream's own model of a user has another prompt, so results are not
those of its leaderboard; its authors also say that some of its tasks are mistaken.

Departures: the calculator is midstream's own (upstream evaluates the model's text as Python); every call of a reply is
made, not the first alone; a call that the agent refuses, as its arguments don't fit, is no step.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue

from midstream.core.component import Context, TasksConfig
from midstream.core.dialogue import OVER, UserTurn
from midstream.core.errors import RecipeError
from midstream.core.protocols import Engine, ToolResult
from midstream.core.task import Task
from midstream.core.trajectory import Sampling
from midstream.sandbox.arithmetic import NotArithmetic, evaluate
from midstream.tasks.finite import Finite
from midstream.tasks.functions import Invocation, StateFunction, matched_calls
from midstream.tasks.tau.package import SPLITS, TRANSFER, Domain, Scripted, digests, load_domain
from midstream.tasks.tau.user import STOP, ModelUser, User, Users


class Config(TasksConfig):
    """Where tau-bench is cloned, which of its domains (`families`), and how a conversation runs.

    `sampling` is that of the model that plays the user; upstream leaves it to the provider, whose default is
    temperature 1. `max_steps` bounds an agent's calls and replies together, as upstream. `output_tokens` bounds a
    function's result. Retail has a train split (500 tasks) and a validation split (its "dev", 20), the airline has not.
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
    """The conversations as tasks; a `core.protocols.TaskSource` and `core.dialogue.Dialogues`.

    `users` make the user of each dialogue; `played_by` gives the part to a model.
    """

    def __init__(self, config: Config, users: Users | None = None) -> None:
        self.config, self.users = config, users
        super().__init__("tau-bench", [split for split in SPLITS if split == "test" or "retail" in config.families])
        self._domains: dict[str, Domain] = {}
        self._solved: dict[str, dict[str, str]] = {}

    def played_by(self, engine: Engine) -> None:
        """Let a model play the users."""
        sampling = self.config.sampling
        self.users = lambda instruction, seed: ModelUser(engine, sampling, instruction, seed)

    def load(self, split: str) -> list[Task]:
        """The split's tasks, domain by domain.

        Raises:
            RecipeError: tau-bench is not there.
        """
        return [
            _task(name, split, place, scripted)
            for name in dict.fromkeys(self.config.families)
            for place, scripted in enumerate(self._domain(name).tasks.get(split, ()))
        ]

    def open(self, task: Task, *, seed: int) -> TauDialogue:
        """A dialogue with a user and a database of its own.

        Raises:
            RecipeError: nobody plays the user.
        """
        if self.users is None:
            raise RecipeError(
                "nobody plays tau-bench's users",
                cause="a conversation needs a model for its customer",
                fix="name one of the recipe's engines as `engine` of its tasks",
            )
        domain, scripted = self.domain_of(task), self.scripted(task)
        return TauDialogue(
            domain,
            scripted,
            self.users(scripted.instruction, seed),
            solved=self.solved(task),
            max_steps=self.config.max_steps,
            output_tokens=self.config.output_tokens,
        )

    def domain_of(self, task: Task) -> Domain:
        """The domain that a task is of."""
        return self._domain(str(task.metadata["domain"]))

    def scripted(self, task: Task) -> Scripted:
        """What tau-bench says of a task, its calls and all."""
        place = task.metadata["place"]
        assert isinstance(place, int)
        return self.domain_of(task).tasks[str(task.metadata["split"])][place]

    def solved(self, task: Task) -> dict[str, str]:
        """Digests of the tables that the task's own calls lead to; made once for each task."""
        if task.id not in self._solved:
            database = Database(self.domain_of(task))
            for action in self.scripted(task).actions:
                if action.name != TRANSFER:
                    database.call(action)
            self._solved[task.id] = digests(database.tables)
        return self._solved[task.id]

    def do_nothing(self, tasks: Sequence[Task]) -> float:
        """The share of `tasks` that an agent succeeds at which calls no function and says nothing of use."""
        return sum(
            not self.scripted(task).outputs and self.solved(task) == self.domain_of(task).start for task in tasks
        ) / len(tasks)

    def _domain(self, name: str) -> Domain:
        if name not in self._domains:
            self._domains[name] = load_domain(self.config.path, name)
        return self._domains[name]


class Database:
    """A domain's tables, new, and calls on them."""

    def __init__(self, domain: Domain) -> None:
        self._functions = domain.functions
        self.tables = domain.database()

    def call(self, invocation: Invocation) -> ToolResult:
        """Make a call. Its text is upstream's; `ok` is False where the function refuses."""
        arguments: dict[str, Any] = copy.deepcopy(dict(invocation.arguments))
        if invocation.name == "calculate":
            return _calculate(str(arguments.get("expression", "")))
        try:
            text = str(self._functions[invocation.name].invoke(data=self.tables, **arguments))
        except Exception as error:  # noqa: BLE001 - upstream's functions raise anything, and so answer wrong arguments
            text = f"Error: {error}"
        return ToolResult(text=text, ok=not text.startswith("Error"))


class TauDialogue:
    """One rollout's user and database; a `core.dialogue.Dialogue`."""

    def __init__(
        self,
        domain: Domain,
        scripted: Scripted,
        user: User,
        *,
        solved: dict[str, str],
        max_steps: int,
        output_tokens: int,
    ) -> None:
        self.system = domain.rules
        self._domain, self._database = domain, Database(domain)
        self._scripted, self._user, self._solved, self._max_steps = scripted, user, solved, max_steps
        self._made: list[Invocation] = []
        self._said: list[str] = []
        self._ended: Literal["", "stopped", "transferred"] = ""
        self._steps = 0
        self.functions = {
            one.name: StateFunction(
                name=one.name,
                description=one.description,
                parameters=one.parameters,
                act=self._call,
                output_tokens=output_tokens,
            )
            for one in domain.functions.values()
        }

    async def begin(self) -> UserTurn:
        """What the user says first."""
        return await self._heard(None)

    async def reply(self, text: str) -> UserTurn:
        """What the user says to the agent; over once the user stops, the agent has handed over, or no step is left."""
        self._steps += 1
        if self._ended or self._steps > self._max_steps:
            return OVER
        self._said.append(text)
        turn = await self._heard(text)
        if STOP in turn.text:
            self._ended = "stopped"
        return replace(turn, over=bool(self._ended) or self._steps == self._max_steps)

    def outcome(self) -> dict[str, JsonValue]:
        """Whether the database and what was said are right, and what of each matched."""
        found = digests(self._database.tables)
        right = [name for name, digest in self._solved.items() if found[name] == digest]
        spoken = [text.lower().replace(",", "") for text in self._said]
        missing = [one for one in self._scripted.outputs if not any(one.lower() in text for text in spoken)]
        expected = [one for one in self._scripted.actions if one.name != TRANSFER]
        why = self._why(len(right) < len(self._solved), missing)
        facts: dict[str, JsonValue] = {
            "state": [len(right), len(self._solved)],
            "calls": [matched_calls(self._made, expected), len(expected)],
            "outputs": [len(self._scripted.outputs) - len(missing), len(self._scripted.outputs)],
            "passed": not why,
            "why": why,
        }
        return {
            "success": not why,
            "why": why,
            "turns": [facts],
            "ended": self._ended,
            "do_nothing": not self._scripted.outputs and self._solved == self._domain.start,
        }

    async def close(self) -> None:
        """Nothing to release: whoever made the user's engine closes it."""

    async def _heard(self, text: str | None) -> UserTurn:
        said, calls = await self._user.say(text)
        return UserTurn(text=said, tools=list(self.functions.values()), calls=calls)

    def _call(self, invocation: Invocation) -> ToolResult:
        """A step of the agent on the database, while the conversation lasts."""
        self._steps += 1
        if self._ended or self._steps > self._max_steps:
            return ToolResult(text="Error: the conversation is over", ok=False)
        self._made.append(invocation)
        if invocation.name == TRANSFER:
            self._ended = "transferred"
        return self._database.call(invocation)

    def _why(self, differs: bool, missing: Sequence[str]) -> str:
        if not self._ended:
            return "the conversation was not brought to an end"
        if differs:
            return "the database differs"
        return f"not said: {', '.join(missing)}" if missing else ""


def _calculate(expression: str) -> ToolResult:
    """Upstream's calculator, its text and rounding, without running Python."""
    try:
        return ToolResult(text=str(round(float(evaluate(expression)), 2)))
    except (NotArithmetic, ArithmeticError) as error:
        return ToolResult(text=f"Error: {error}", ok=False)


def _task(domain: str, split: str, place: int, scripted: Scripted) -> Task:
    """What the user wants, and the calls and words that do it, for reports: an agent hears the user alone."""
    calls = [f"{one.name}({json.dumps(one.arguments)})" for one in scripted.actions]
    return Task(
        id=f"{domain}-{split}-{place}",
        question=scripted.instruction,
        answer="\n".join([*calls, *scripted.outputs]) or "(nothing to call)",
        reward="dialogue",
        family=domain,
        metadata={"domain": domain, "split": split, "place": place},
    )
