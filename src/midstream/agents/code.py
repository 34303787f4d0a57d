"""The executor's code mode: the model writes a short program around the action's tool.

Source: arXiv 2510.05592, section 3.1: a command may be code, so that calls of a tool can be chained, branched on and
post-processed within one turn. `sandbox.code_runner` runs it. The tool's name, description and parameters come first in
the prompt and the action last, as for arguments; a program that does not compile is shown to the model once.

    ```python
    heights = [float(local_search(query=f"{name} height").split()[-1]) for name in ("Amberbank", "Coldmere")]
    print(sum(heights))
    ```
"""

from __future__ import annotations

from collections.abc import Sequence

from midstream.agents.prompted import ExecutorConfig, PromptedModule
from midstream.core.errors import RecipeError
from midstream.core.prompt_text import to_json
from midstream.core.protocols import ModuleContext, Tool
from midstream.core.replies import find_program
from midstream.core.trajectory import Action, Call, Command
from midstream.sandbox.code_runner import function_name


class CodeExecutor(PromptedModule):
    """`core.protocols.Executor` on an engine that writes programs.

    Like the executor that writes arguments it sees the action, the tools and its lessons, never query or memory.

    Raises:
        RecipeError: `structured_output` is on, or the prompt file does not do.
    """

    role, layout, prompt = "executor", ("tools", "action"), "executor_code"

    def __init__(self, config: ExecutorConfig) -> None:
        if config.structured_output:
            raise RecipeError(
                'agent.executor.structured_output = true with mode = "code"',
                cause="a server can enforce the schema of arguments, not of a program",
                fix='set structured_output = false, or mode = "arguments"',
            )
        super().__init__(config)

    async def command(
        self, action: Action, tools: Sequence[Tool], context: ModuleContext
    ) -> tuple[Command, tuple[Call, ...]]:
        """Write the program for an action; one that still does not compile after a second ask has `error`."""
        if all(tool.name != action.tool for tool in tools):
            return Command(tool=action.tool, error=f"no tool is called {action.tool!r}"), ()
        wanted = {"function": function_name(action.tool), "sub_goal": action.sub_goal, "context": action.context}
        values = {"tools": render_functions(tools), "action": to_json(wanted)}

        def parse(reply: str) -> tuple[Command, str | None]:
            command = parse_program(reply, action.tool)
            return command, command.error

        return await self._ask(values, context, parse)


def render_functions(tools: Sequence[Tool]) -> str:
    """One line of JSON a tool: the function it is in a program, its description, its parameters."""
    return "\n".join(
        to_json({"function": function_name(tool.name), "description": tool.description, "parameters": tool.parameters})
        for tool in tools
    )


def parse_program(text: str, tool: str) -> Command:
    """The executor's program (`core.replies.find_program`); without one, a command with `error`, never an exception."""
    code, problem = find_program(text)
    return (
        Command(tool=tool, code=code)
        if code is not None
        else Command(tool=tool, error=f"no program for {tool}: {problem}")
    )
