"""Any typed Python function as a tool: `@tool`.

    @tool
    def word_count(text: str) -> int:
        \"\"\"Counts the words of a text.\"\"\"
        return len(text.split())

    word_count("one two")                             # 2: it is still the function
    await word_count.call({"text": "one two"})        # ToolResult(text="2"): and a tool (`core.protocols.Tool`)

Name, description and JSON schema come from the function's name, docstring and type hints. Arguments are held to the
schema strictly, as JSON ("3" is no number), and converted to the hints' types: a date, an Enum, a dataclass, a model.
A `ValueError` of the function is an answer that the model can read; any other exception is a broken tool.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import json
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, overload

from pydantic import JsonValue, ValidationError
from pydantic_core import to_jsonable_python

from midstream.core.errors import InfrastructureError, ToolServerError, UsageError
from midstream.core.protocols import ToolResult
from midstream.tools import docstrings, signatures

P = ParamSpec("P")
R = TypeVar("R")

TIMEOUT_S = 30.0
OUTPUT_TOKENS = 2000
# Each is a ValueError, and what reading a broken reply raises: no model's fault.
_PARSING = (json.JSONDecodeError, UnicodeError, ValidationError)
_SHOWN_PROBLEMS = 5
_SHOWN_MESSAGE = 500  # characters


class FunctionTool(Generic[P, R]):
    """A function as a tool; called like the function it is the function.

    `timeout_s` bounds one call and `output_tokens` its text. An `async` function runs in the event loop; any other in a
    thread of its own, so that runs side by side don't wait for it. A thread cannot be killed: a function that is still
    at work after `timeout_s` goes on, unheard, and ends with the program at the latest.

    Raises:
        UsageError: the function cannot be a tool; the error names the function, the argument and the fix.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout_s: float = TIMEOUT_S,
        output_tokens: int = OUTPUT_TOKENS,
    ) -> None:
        parameters = signatures.parameters_of(function)  # first: it says what is no function
        if timeout_s <= 0 or output_tokens < 1:
            raise UsageError(
                f"{function.__qualname__}: timeout_s={timeout_s!r}, output_tokens={output_tokens!r}",
                cause="with these it could never answer",
                fix="give it more than 0 seconds and at least one token, or leave them out",
            )
        functools.update_wrapper(self, function)
        self._function: Callable[..., Any] = function
        self._place = f"{function.__module__}.{function.__qualname__}"
        summary, documented = docstrings.parse(inspect.getdoc(function) or "")
        self.name = signatures.checked_name(name or function.__name__)
        self.description = description or signatures.checked_summary(function, summary)
        self._adapter = signatures.adapter_of(function, parameters, documented)
        self.parameters: Mapping[str, Any] = signatures.schema_of(self._adapter)
        self.timeout_s, self.output_tokens = timeout_s, output_tokens

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function itself, unchecked."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name} of {self._place}>"

    def renamed(self, name: str) -> FunctionTool[P, R]:
        """The same tool under another name."""
        return FunctionTool(
            self._function,
            name=name,
            description=self.description,
            timeout_s=self.timeout_s,
            output_tokens=self.output_tokens,
        )

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """What the function returns: text as it is, other values as JSON, None as "(no output)".

        `ok=False` where the arguments do not fit, or the function raised `ValueError`.

        Raises:
            ToolServerError: the function raised anything else, or returned what JSON cannot hold.
        """
        if inspect.iscoroutinefunction(self._function):
            try:
                return self._shown(await self._function(**self._given(arguments)))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - a stranger's function can raise anything
                return self._judged(error)
        return await _in_thread(lambda: self._attempt(arguments))

    async def close(self) -> None:
        """Nothing to release."""

    def _attempt(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """One call, in its thread; `SystemExit` too must not get past it."""
        try:
            return self._shown(self._function(**self._given(arguments)))
        except BaseException as error:  # noqa: BLE001 - a stranger's function can raise anything
            return self._judged(error)

    def _given(self, arguments: Mapping[str, JsonValue]) -> dict[str, Any]:
        """The arguments as the hints want them; one that is left out is the function's own default."""
        try:
            return self._adapter.validate_json(json.dumps(_whole(dict(arguments))), strict=True)
        except ValidationError as error:
            raise ValueError(f"invalid arguments for {self.name}: {_problems(error)}") from error

    def _shown(self, value: object) -> ToolResult:
        """The function's value as an answer."""
        if isinstance(value, ToolResult):
            return value
        if isinstance(value, bytes | bytearray):
            value = value.decode("utf-8", "replace")
        if value is None or value == "":
            return ToolResult(text="(no output)")
        if isinstance(value, str):
            return ToolResult(text=value)
        try:
            text = json.dumps(to_jsonable_python(value, inf_nan_mode="constants"), ensure_ascii=False)
        except ValueError as error:  # of an unknown type, or one that holds itself
            raise ToolServerError(
                f"{self.name} returned {type(value).__name__}, which JSON cannot hold: {error}",
                cause=f"the function {self._place} returned it",
                fix="return text, or lists, dictionaries, dataclasses and models of plain values",
            ) from error
        return ToolResult(text=text)

    def _judged(self, error: BaseException) -> ToolResult:
        """What an exception means: an answer for the model, or a broken tool."""
        if isinstance(error, InfrastructureError):
            raise error
        if isinstance(error, ValueError) and not isinstance(error, _PARSING):
            return ToolResult(text=_text_of(error) or f"{self.name} raised {type(error).__name__}", ok=False)
        raise ToolServerError(
            f"{self.name} raised {type(error).__name__}: {_text_of(error)[:_SHOWN_MESSAGE]}",
            cause=f"the function {self._function.__qualname__} let it out{_line_of(error, self._function)}",
            fix="correct the function; where arguments are wrong or nothing is found, raise ValueError with a text",
        ) from error


@overload
def tool(
    *, name: str | None = None, description: str | None = None, timeout_s: float = ..., output_tokens: int = ...
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
@overload
def tool(
    function: Callable[P, R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float = ...,
    output_tokens: int = ...,
) -> FunctionTool[P, R]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout_s: float = TIMEOUT_S,
    output_tokens: int = OUTPUT_TOKENS,
) -> Any:
    """Make a typed function, or an object's method, a tool: `@tool`, `@tool(timeout_s=5)`, `tool(store.find)`.

    Args:
        name: the tool's name; otherwise the function's.
        description: what the model is told; otherwise the docstring up to its first section.
        timeout_s: seconds of one call.
        output_tokens: of its text, four characters counted as a token; a longer one is cut.

    Raises:
        UsageError: the function cannot be a tool.
    """

    def make(chosen: Callable[..., Any]) -> FunctionTool[..., Any]:
        return FunctionTool(
            chosen, name=name, description=description, timeout_s=timeout_s, output_tokens=output_tokens
        )

    return make if function is None else make(function)


# --- one call ---------------------------------------------------------------------------------------------------------


async def _in_thread(job: Callable[[], ToolResult]) -> ToolResult:
    """What `job` returns or raises, from a daemon thread of its own.

    asyncio's pool has few threads, in which calls would queue, and the program could not end before they do.
    """
    done: Future[ToolResult] = Future()
    done.set_running_or_notify_cancel()  # from now on whoever waits can leave, and the job still has where to put this
    context = contextvars.copy_context()

    def run() -> None:
        try:
            done.set_result(context.run(job))
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the caller
            done.set_exception(error)

    threading.Thread(target=run, name="tool", daemon=True).start()
    return await asyncio.wrap_future(done)


def _whole(value: Any) -> Any:
    """The same JSON with 3.0 as 3: a schema's integers are told by value, pydantic's by spelling."""
    if isinstance(value, dict):
        return {key: _whole(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _problems(error: ValidationError) -> str:
    found = [
        f"{'.'.join(map(str, one['loc'])) or 'all'}: {one['msg']}, not {json.dumps(one['input'], default=repr)[:80]}"
        for one in error.errors(include_url=False)
    ]
    more = [f"and {len(found) - _SHOWN_PROBLEMS} more"] if len(found) > _SHOWN_PROBLEMS else []
    return "; ".join(found[:_SHOWN_PROBLEMS] + more)


def _text_of(error: BaseException) -> str:
    """What it says; an exception of a stranger's may not even be able to do that."""
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001
        return f"(its text cannot be had: {type(failure).__name__})"


def _line_of(error: BaseException, function: Callable[..., Any]) -> str:
    """ ", my_tools.py, line 12", the last one in the function's own file."""
    own = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", "")  # it may wrap what has none
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == own]
    return (f", {Path(own).name}" if own else "") + (f", line {lines[-1]}" if lines else "")
