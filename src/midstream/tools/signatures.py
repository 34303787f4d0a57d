"""What a function takes, by its type hints: a JSON schema, and what checks and converts the arguments.

A function that cannot be a tool is refused with `UsageError`, which names the function, the argument and the fix.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NotRequired, get_args, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from midstream.core.errors import UsageError

_TYPES = "str, int, float, bool, list, dict, Literal, Enum, a dataclass or a pydantic model"


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The function's parameters, each of a kind that has a name."""
    if not (inspect.isfunction(function) or inspect.ismethod(function)) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"{function!r} cannot be a tool",
            cause="it is no function and no method that returns one value",
            fix="decorate a function that is written with def or async def",
        )
    parameters = inspect.signature(function).parameters
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    for name, parameter in parameters.items():
        if parameter.kind in (*stars, parameter.POSITIONAL_ONLY):
            cause = "it has no fixed name, and a model gives arguments by name"
            raise _unfit(function, stars.get(parameter.kind, "") + name, cause, "give each argument a name of its own")
    return parameters


def _hints_of(function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]) -> Mapping[str, Any]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise UsageError(
            f"the type hints of {function.__qualname__} cannot be read: {error}",
            cause="a type is misspelt, or is not there where the function is defined",
            fix="import or define the type at the top of the module",
        ) from error
    for name in parameters:
        if name in hints:
            continue
        if name == "self":
            fix = "make the object first, and then the tool from its method: tool(thing.method)"
            raise _unfit(function, name, "the function is a method, and no object is there yet", fix)
        raise _unfit(function, name, "it has no type hint, which the schema is made from", f"e.g. {name}: str")
    return hints


def adapter_of(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], documented: Mapping[str, str]
) -> TypeAdapter[Any]:
    """What checks and converts the arguments, as a dictionary of those that were given."""
    hints, fields = _hints_of(function, parameters), {}
    for name, parameter in parameters.items():
        hint = _described(hints[name], documented.get(name, ""))
        _check_hint(function, name, hint)
        if parameter.default is not parameter.empty:
            hint = NotRequired[Annotated[hint, Field(json_schema_extra=_default(parameter.default))]]
        fields[name] = hint
    kind = TypedDict("Arguments", fields)  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]
    kind.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    return TypeAdapter(kind)


def _described(hint: Any, text: str) -> Any:
    """The hint with the docstring's text, unless a `Field` of its own describes it."""
    own = any(isinstance(one, FieldInfo) and one.description for one in get_args(hint)[1:])
    return hint if own or not text else Annotated[hint, Field(description=text)]


def _check_hint(function: Callable[..., Any], name: str, hint: Any) -> None:
    try:
        TypeAdapter(hint).json_schema()
    except PydanticUserError as error:
        why = str(error).partition("\n")[0].partition(". Set `")[0]
        raise _unfit(function, name, why, f"use types that JSON has: {_TYPES}") from error


def _default(value: Any) -> dict[str, Any]:
    """What the schema says of a default, if JSON can hold it."""
    try:
        return {"default": to_jsonable_python(value)}
    except PydanticSerializationError:
        return {}


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles that repeat the fields' names: a model reads every schema, on every turn."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schema_of(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """The JSON schema of what an adapter of `adapter_of` takes, without titles."""
    schema = adapter.json_schema(schema_generator=_Untitled)
    for one in (schema, *schema.get("$defs", {}).values()):
        one.pop("title", None)
    return {"type": "object", "properties": {}, **schema}


def _unfit(function: Callable[..., Any], argument: str, cause: str, fix: str) -> UsageError:
    return UsageError(f"{function.__qualname__}: argument {argument!r} cannot be a tool's", cause=cause, fix=fix)


def checked_name(name: str) -> str:
    """`name`, if models and programs can call a tool by it."""
    if not (name.isascii() and name.isidentifier() and len(name) <= 64) or keyword.iskeyword(name):
        raise UsageError(
            f"{name!r} cannot be a tool's name",
            cause="models and programs call a tool by it: letters, digits and _, at most 64 of them",
            fix='@tool(name="word_count")',
        )
    return name


def checked_summary(function: Callable[..., Any], summary: str) -> str:
    """`summary`, if there is one."""
    if not summary:
        raise UsageError(
            f"{function.__qualname__} has no description",
            cause="its docstring is missing or begins with a section, and a model chooses a tool by what it does",
            fix='write a docstring, or @tool(description="Counts the words of a text.")',
        )
    return summary
