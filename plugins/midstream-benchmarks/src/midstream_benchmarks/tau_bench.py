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

tau-bench (MIT, https://github.com/sierra-research/tau-bench, arXiv 2406.12045) imports litellm as soon as any part of
it is imported. Its functions, tasks and data don't need that; so they are imported with empty stand-ins for the
packages around them, and all of it is removed from `sys.modules` again: an installed tau-bench is not affected.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pydantic import Field, JsonValue

from midstream.components.component import Context, TasksConfig
from midstream.core.engine import Engine, Request
from midstream.core.errors import RecipeError
from midstream.core.seeds import derive_seed
from midstream.core.source import OVER, Dialogue, UserTurn
from midstream.core.task import Task
from midstream.core.text import spoken
from midstream.core.tool import ToolResult
from midstream.core.trajectory import Message, Sampling
from midstream.sandbox.arithmetic import evaluate
from midstream.sources.finite import Finite
from midstream_benchmarks.reading import matched_calls, reading
from midstream_worlds.functions import FunctionSpec, Invocation, StateFunction

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


class TauBenchConfig(TasksConfig):
    """tau-bench: a customer, a company's rules and functions on its database.

    Retail has a train split (500 tasks) and a validation split (its "dev", 20); airline has only tests.

    Attributes:
        path: a clone of tau-bench's repository
        families: domains
        max_steps: the most calls and replies of the agent together, as upstream
        output_tokens: the most tokens of a function's result
        sampling: of the user's model; upstream leaves it to the provider, whose default is temperature 1
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
        return TauBench(self, context.engine)


class TauBench(Finite):
    """The conversations as tasks; a `core.source.TaskSource` and `core.source.Dialogues`.

    `engine` has the model that acts as the user; without it, tasks can be listed but no dialogue opened.
    """

    def __init__(self, config: TauBenchConfig, engine: Engine | None = None) -> None:
        self.config, self.engine = config, engine
        super().__init__("tau-bench", [split for split in SPLITS if split == "test" or "retail" in config.families])
        self._domains: dict[str, Domain] = {}
        self._solved: dict[str, dict[str, str]] = {}

    def load(self, split: str) -> list[Task]:
        """Make the split's tasks, by domain. Question and answer are for people: an agent sees the user's messages."""
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
        """Open a dialogue with a new user and database. Raises `RecipeError` without an engine for the user."""
        if self.engine is None:
            raise RecipeError(
                "tau-bench has no user: a conversation needs a model for its customer",
                code="engine-missing",
                fix="name one of the recipe's engines as `engine` of its tasks",
            )
        return TauDialogue(self, task, self.engine, seed)

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
            domain = self.domain_of(task)
            database = json.loads(domain.data)
            for action in self.scripted(task).actions:
                if action.name != TRANSFER:
                    call_function(domain, database, action)
            self._solved[task.id] = digests(database)
        return self._solved[task.id]

    def solved_by_nothing(self, task: Task) -> bool:
        """Whether an agent succeeds at a task that calls no function and writes nothing of use."""
        return not self.scripted(task).outputs and self.solved(task) == self.domain_of(task).start

    def _domain(self, name: str) -> Domain:
        if name not in self._domains:
            self._domains[name] = load_domain(self.config.path, name)
        return self._domains[name]


def call_function(domain: Domain, database: dict[str, Any], invocation: Invocation) -> ToolResult:
    """Make a call on a copy of the database. Its text is upstream's; `ok` is False where the function refuses.

    The calculator has upstream's text and rounding, but does not run Python.
    """
    arguments: dict[str, Any] = copy.deepcopy(dict(invocation.arguments))
    try:
        if invocation.name == "calculate":
            text = str(round(float(evaluate(str(arguments.get("expression", "")))), 2))
        else:
            text = str(domain.functions[invocation.name].invoke(data=database, **arguments))
    except Exception as error:  # noqa: BLE001 - upstream's functions raise anything on wrong arguments
        text = f"Error: {error}"
    return ToolResult(text=text, ok=not text.startswith("Error"))


class TauDialogue(Dialogue):
    """One rollout's user, acted by a model, and its database."""

    def __init__(self, source: TauBench, task: Task, engine: Engine, seed: int) -> None:
        self._domain, self._config, self._engine, self._seed = source.domain_of(task), source.config, engine, seed
        self.system = self._domain.rules
        self._scripted, self._solved = source.scripted(task), source.solved(task)
        self._do_nothing = source.solved_by_nothing(task)
        self._database: dict[str, Any] = json.loads(self._domain.data)
        role = _ROLE.format(instruction=self._scripted.instruction, stop=STOP)
        self._messages = [Message(role="system", content=role)]
        self._made: list[Invocation] = []
        self._written: list[str] = []
        self._ended: Literal["", "stopped", "transferred"] = ""
        self._steps = 0
        self.functions = {
            name: StateFunction(function, self._call, self._config.output_tokens)
            for name, function in self._domain.functions.items()
        }

    async def begin(self) -> UserTurn:
        """Return the user's first message."""
        return await self._user_turn(_GREETING)

    async def reply(self, text: str) -> UserTurn:
        """Return the user's answer; over once the user stops, the agent has handed over, or no step is left."""
        self._steps += 1
        if self._ended or self._steps > self._config.max_steps:
            return OVER
        self._written.append(text)
        turn = await self._user_turn(text)
        if STOP in turn.text:
            self._ended = "stopped"
        return replace(turn, over=bool(self._ended) or self._steps == self._config.max_steps)

    def outcome(self) -> dict[str, JsonValue]:
        """Whether the database and the agent's messages are right, and how much of each matched."""
        found = digests(self._database)
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
        return {"success": not why, "why": why, "turns": [facts], "ended": self._ended, "do_nothing": self._do_nothing}

    async def _user_turn(self, heard: str) -> UserTurn:
        """Ask the model for the customer's next message; in its chat the agent is the user."""
        self._messages.append(Message(role="user", content=heard))
        request = Request(
            role="user",
            messages=tuple(self._messages),
            sampling=self._config.sampling,
            seed=derive_seed(self._seed, "user", len(self._messages)),
        )
        call = await self._engine.sample(request)
        text = spoken(call.completion).strip()
        self._messages.append(Message(role="assistant", content=text))
        return UserTurn(text=text, tools=list(self.functions.values()), calls=(call,))

    def _call(self, invocation: Invocation) -> ToolResult:
        """Take a step of the agent on the database, until the conversation is over."""
        self._steps += 1
        if self._ended or self._steps > self._config.max_steps:
            return ToolResult(text="Error: the conversation is over", ok=False)
        self._made.append(invocation)
        if invocation.name == TRANSFER:
            self._ended = "transferred"
        return call_function(self._domain, self._database, invocation)


# Our splits and theirs; the airline has tests alone.
SPLITS = {"train": "tasks_train", "validation": "tasks_dev", "test": "tasks_test"}
# The function that hands a conversation over to a person, which ends it.
TRANSFER = "transfer_to_human_agents"
_ROOT = "tau_bench"
_CLONE = "git clone https://github.com/sierra-research/tau-bench"


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """One task: what its user wants, the calls that do it, and the texts that the agent must write."""

    instruction: str
    actions: tuple[Invocation, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TauFunction(FunctionSpec):
    """A function of a domain: `invoke` takes the database as `data` and the arguments by name, and returns text."""

    invoke: Callable[..., str]


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A domain: rules for the agent, functions by name, tasks by our split names, and its database as JSON text.

    `start` are the digests of the database's tables.
    """

    name: str
    rules: str
    functions: Mapping[str, TauFunction]
    tasks: Mapping[str, tuple[Scripted, ...]]
    data: str
    start: Mapping[str, str]


def load_domain(path: Path, name: str) -> Domain:
    """Read a domain of the clone at `path`. Raises `RecipeError` if there is no clone, or it cannot be read."""
    package = path.expanduser().absolute() / _ROOT
    directory = package / "envs" / name
    if not directory.is_dir():
        raise RecipeError(
            f"no tau-bench domain {name!r} at {path}",
            code="data-not-found",
            fix=f"run `{_CLONE}`, and name its directory as `path`",
        )
    own = f"{_ROOT}.envs.{name}"
    with reading(f"tau-bench's {name} at {path}", f"clone it again: {_CLONE}"), _stand_ins(package, name):
        functions: dict[str, TauFunction] = {}
        for tool in importlib.import_module(f"{own}.tools").ALL_TOOLS:
            info = tool.get_info()["function"]
            about = {key: info[key] for key in ("name", "description", "parameters")}
            functions[info["name"]] = TauFunction(**about, invoke=tool.invoke)
        rules = importlib.import_module(f"{own}.wiki").WIKI
        data = importlib.import_module(f"{own}.data").load_data()
        tasks: dict[str, tuple[Scripted, ...]] = {}
        for split, file in SPLITS.items():
            if split != "test" and not (directory / f"{file}.py").is_file():
                continue
            # The list of a module's tasks is called TASKS, TASKS_TEST or the like.
            module = importlib.import_module(f"{own}.{file}")
            [listed, *_] = [value for key, value in vars(module).items() if key.startswith("TASKS")]
            tasks[split] = tuple(
                Scripted(
                    instruction=task.instruction,
                    actions=tuple(Invocation(name=call.name, arguments=call.kwargs) for call in task.actions),
                    outputs=tuple(task.outputs),
                )
                for task in listed
            )
    return Domain(name=name, rules=rules, functions=functions, tasks=tasks, data=json.dumps(data), start=digests(data))


def digests(database: Mapping[str, Any]) -> dict[str, str]:
    """A digest of each table: equal for equal tables, whatever the order of their keys."""
    return {
        table: hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest() for table, rows in database.items()
    }


@contextmanager
def _stand_ins(package: Path, domain: str) -> Iterator[None]:
    """Make the clone's modules importable as `tau_bench...`, and remove them from `sys.modules` afterwards."""

    def imported() -> dict[str, ModuleType]:
        return {name: module for name, module in sys.modules.items() if f"{name}.".startswith(f"{_ROOT}.")}

    kept = imported()
    for name in kept:
        del sys.modules[name]
    for name in (_ROOT, f"{_ROOT}.envs", f"{_ROOT}.envs.{domain}"):
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = [str(package.joinpath(*name.split(".")[1:]))]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for name in imported():
            del sys.modules[name]
        sys.modules.update(kept)
