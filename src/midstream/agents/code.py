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

import ast
import warnings
from collections.abc import Sequence

from midstream.agents.formats import spoken
from midstream.agents.prompted import ExecutorConfig, PromptedModule
from midstream.agents.rendering import to_json
from midstream.core.errors import RecipeError
from midstream.core.protocols import ModuleContext, Tool
from midstream.core.trajectory import Action, Call, Command
from midstream.sandbox.code_runner import function_name

_FENCE = "```"
_PYTHON = ("python", "python3", "py")
_MAX_CODE = 50_000  # characters: more is no short program, and compiling it would hold up every other run


class CodeExecutor(PromptedModule):
    """`core.protocols.Executor` on an engine that writes programs.

    Like the executor that writes arguments it sees the action and the tools, never the query, the memory or lessons.

    Raises:
        RecipeError: `structured_output` is on, or the prompt file does not do.
    """

    role, layout, prompt = "executor", ("tools", "action"), "executor_code"

    def __init__(self, config: ExecutorConfig) -> None:
        if config.structured_output:
            raise RecipeError(
                'agent.executor.structured_output = true with mode = "code"',
                cause="a server can enforce the schema of arguments, not of a program",
                mend='set structured_output = false, or mode = "arguments"',
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
    """The executor's program: the first fenced block that compiles, or the whole text where nothing is fenced.

    Blocks marked as Python go before any others. Never raises: a reply without a program that compiles is a command
    with `error`, which says what is wrong with the first.
    """
    reply = spoken(text)
    blocks = _fenced(reply)
    marked = [code for language, code in blocks if language in _PYTHON]
    candidates = marked or [code for _, code in blocks] or [reply]
    problems = []
    for code in candidates:
        problem = _compile_error(code)
        if problem is None:
            return Command(tool=tool, code=code)
        problems.append(problem)
    return Command(tool=tool, error=f"no program for {tool}: {problems[0]}")


def _fenced(text: str) -> list[tuple[str, str]]:
    """(language, text) of fenced blocks; one that is never closed reaches to the end."""
    blocks: list[tuple[str, str]] = []
    language, lines = "", None
    for line in text.split("\n"):
        mark = line.strip()
        if lines is None and mark.startswith(_FENCE):
            language, lines = mark.strip("`").strip().lower(), []
        elif lines is not None and mark == _FENCE:
            blocks.append((language, "\n".join(lines)))
            lines = None
        elif lines is not None:
            lines.append(line)
    return blocks if lines is None else [*blocks, (language, "\n".join(lines))]


def _compile_error(code: str) -> str | None:
    """Why `code` is no program, or None."""
    if not code.strip():
        return "the reply holds no code"
    if len(code) > _MAX_CODE:
        return f"its {len(code)} characters are more than {_MAX_CODE}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a string is not the library's user's concern
            ast.parse(code)  # not compile: nested `finally` blocks double its work, which only the sandbox may bear
    except SyntaxError as error:
        lines = code.split("\n")
        number = error.lineno or 0
        shown = f": {lines[number - 1].strip()[:200]}" if 0 < number <= len(lines) else ""
        return f"{type(error).__name__}: {error.msg} (line {number}{shown})"
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:  # null bytes; nested too deeply
        return f"{type(error).__name__}: {error}"
    return None
