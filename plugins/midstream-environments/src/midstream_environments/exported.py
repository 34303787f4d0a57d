"""What an exported environment is made of at run time: the tasks, tools and reward of its recipe.

The package that `midstream environments export` writes has a folder `world`: `recipe.toml`, `tasks.jsonl`, and copies
of your own files. verifiers or OpenEnv runs the agent; this module answers its calls of tools and scores its answer.

    world = World(Path("my_environment/world"))
    run = world.open("test/quiz-1f2e3d4c5b6a")
    await run.call("python", {"code": "print(34 * 57)"})    # CallResult(text="1938", ok=True)
    await run.score("The answer is 1938.")                  # Score(value=1.0)
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from concurrent.futures import TimeoutError as LateError
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pydantic import JsonValue

from midstream.core.answers import extract
from midstream.core.data import unfit
from midstream.core.errors import UsageError
from midstream.core.json_schema import schema_error
from midstream.core.stream_template import load_template
from midstream.core.task import Task
from midstream.core.tool import PerRun, Tool, ToolResult, ToolRun
from midstream.core.tool_calls import call_tool
from midstream.core.trajectory import Score, Trajectory
from midstream.process import Running
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe

T = TypeVar("T")

RECIPE, TASKS = "recipe.toml", "tasks.jsonl"
# For tools to end their processes.
_CLOSE_S = 10.0


class World:
    """The tasks, tools and reward of an exported recipe.

    They have an event loop of their own, in a thread, so that any number of loops and threads may use them.

    Raises:
        RecipeError: the recipe does not fit this version of midstream, or a package that it names is missing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        recipe = load_recipe(str((directory / RECIPE).resolve()))
        self.name, self.description = recipe.name, recipe.description
        # Replies in all; of the recipe's agent it is the number of those that call tools.
        self.max_replies: int = getattr(recipe.agent, "max_turns", 10) + 1
        self._build = Build(recipe)
        # What tools and rewards find the facts of a task in.
        self._source = self._build.source
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="midstream-world", daemon=True)
        self._thread.start()

    @property
    def system(self) -> str:
        """How midstream asks a model that answers alone, or with tools in its own form."""
        return load_template("direct").system.replace("{{lessons}}", "").strip()

    @cached_property
    def tasks(self) -> dict[str, Task]:
        """The tasks with their gold answers, by SPLIT/ID."""
        with (self._directory / TASKS).open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        return {f"{row['split']}/{row['task']['id']}": Task.model_validate(row["task"]) for row in rows}

    @property
    def splits(self) -> list[str]:
        """The splits that have tasks, in the order of the file."""
        return list(dict.fromkeys(case.partition("/")[0] for case in self.tasks))

    def cases(self, split: str) -> list[str]:
        """The keys of a split's tasks. Raises `UsageError` if it has none."""
        found = [case for case in self.tasks if case.startswith(f"{split}/")]
        if not found:
            raise UsageError(
                f"{self.name} has no split {split!r}; it has {', '.join(self.splits)}",
                code="unknown-split",
                fix="name one of them, or export the environment again with --split",
            )
        return found

    @cached_property
    def tools(self) -> dict[str, Tool]:
        """The tools by name, as no run has changed them."""
        return {tool.name: tool for tool in self._build.tools}

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools as a model sees them: name, description and JSON schema."""
        return [
            {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
            for tool in self.tools.values()
        ]

    @property
    def per_run(self) -> bool:
        """Whether a tool depends on the task of its run."""
        return any(isinstance(tool, PerRun) for tool in self.tools.values())

    def open(self, case: str = "", *, seed: int = 0) -> WorldRun:
        """One attempt at a task; without one, its tools can be called all the same."""
        task = self.tasks.get(case)
        if case and task is None:
            raise UsageError(
                f"{self.name} has no task {case!r}",
                code="unknown-task",
                fix=f"name one of its {len(self.tasks)}, e.g. {next(iter(self.tasks), '')!r}",
            )
        return WorldRun(self, task, seed)

    async def do(self, work: Running[T]) -> T:
        """Do the work in the loop of the tools."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def reward(self) -> Any:
        """The reward of the recipe."""
        return self._build.reward(self._build.recipe.reward)

    def close(self) -> None:
        """End what tools and reward have started; repeating does nothing. Without it, that ends with this process."""
        if self._loop.is_running():
            with suppress(LateError):
                asyncio.run_coroutine_threadsafe(self._build.close(), self._loop).result(_CLOSE_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class WorldRun:
    """One attempt at a task: its own tools, and its score."""

    def __init__(self, world: World, task: Task | None, seed: int) -> None:
        self._world, self._task, self._seed = world, task, seed
        self._own: dict[str, Tool] = {}

    async def call(self, name: str, arguments: object) -> ToolResult:
        """Call a tool as midstream's agents do: a wrong name or wrong arguments are an answer that the model reads.

        Raises:
            InfrastructureError: the tool failed; this is no result.
        """
        tool = self._tool(name)
        if tool is None:
            known = ", ".join(self._world.tools) or "none"
            return ToolResult(text=f"no tool is called {name[:80]!r} (tools: {known})", ok=False)
        if not isinstance(arguments, Mapping):
            return ToolResult(text=f"invalid arguments for {name}: they are no JSON object", ok=False)
        if problem := unfit(arguments) or schema_error(arguments, tool.parameters):
            return ToolResult(text=f"invalid arguments for {name}: {problem}", ok=False)
        return await self._world.do(call_tool(tool, arguments))

    def _tool(self, name: str) -> Tool | None:
        if name not in self._own and (tool := self._world.tools.get(name)) is not None:
            if isinstance(tool, PerRun):
                if self._task is None:
                    raise UsageError(f"{name} needs the task of its run", code="task-unfit", fix="open a task first")
                tool = tool.for_run(ToolRun(task=self._task, seed=self._seed))
            self._own[name] = tool
        return self._own.get(name)

    async def score(self, reply: str | None) -> Score:
        """Score the model's last reply, out of its answer tags; none, or an empty one, is worth 0.

        Raises:
            RewardError: there is no score.
        """
        assert self._task is not None
        answer = extract(reply or "") or None
        trajectory = Trajectory(
            id=self._task.id,
            task_id=self._task.id,
            question=self._task.question,
            answer=answer,
            final=reply or "",
            seed=self._seed,
        )
        return await self._world.do(self._world.reward().score(self._task, trajectory))


def loads_object(text: str) -> JsonValue:
    """The value of a tool call's arguments; the text itself where it is no JSON, for `WorldRun.call` to refuse."""
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
