"""Any typed Python function as a tool: `@tool`, or a recipe's `type = "function"`.

    @tool
    def word_count(text: str) -> int:
        \"\"\"Counts the words of a text.\"\"\"
        return len(text.split())

    word_count("one two")                             # 2: it is still the function
    await word_count.call({"text": "one two"})        # ToolResult(text="2"): and a tool (`core.tool.Tool`)

    [tools.word_count]                                # in a recipe; or --tools my_tools.py:word_count
    type = "function"
    function = "my_tools.py:word_count"

Name, description and JSON schema come from the function's name, docstring and type hints. Arguments are validated
strictly, as JSON ("3" is not a number), and converted to the hints' types: a date, an Enum, a dataclass, a model.
A `ValueError` from the function is an answer that the model can read; any other exception is a broken tool.
"""

from __future__ import annotations

import functools
import inspect
import json
import keyword
import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Annotated, Any, Generic, NotRequired, ParamSpec, TypeVar, Unpack, get_args, get_type_hints, overload

import docstring_parser
from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, field_validator
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticSerializationError, to_jsonable_python
from typing_extensions import TypedDict  # pydantic requires this one before Python 3.12

from midstream.components.component import Context, Kind, ToolConfig
from midstream.components.own import is_reference, load
from midstream.components.own_settings import class_settings, settings_of
from midstream.components.tables import validate
from midstream.core.data import whole
from midstream.core.errors import RecipeError, ToolServerError, UsageError
from midstream.core.json_schema import unusable_schema
from midstream.core.threads import in_thread
from midstream.core.tool import Renamed, Tool, ToolResult

P = ParamSpec("P")
R = TypeVar("R")

TIMEOUT_S = 30.0
OUTPUT_TOKENS = 2000
# Subclasses of ValueError that parsing a broken reply raises: not the model's mistake.
_PARSING_ERRORS = (json.JSONDecodeError, UnicodeError, ValidationError)
_SHOWN_PROBLEMS = 5
_EXAMPLE = 'e.g. "my_tools.py:word_count" or "my_package.tools:word_count"'


class FunctionTool(Tool, Generic[P, R]):
    """A function as a tool; calling the object calls the function.

    `timeout_s` bounds one call and `output_tokens` its text. An `async` function runs in the event loop, any other in
    its own thread, so that concurrent runs do not wait for it. Python cannot kill a thread: a function that is still
    running after `timeout_s` continues, its result is dropped, and it ends with the program at the latest.

    A function that cannot be a tool raises `UsageError`, which names the function, the argument and the fix.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str = "",
        description: str = "",
        timeout_s: float = TIMEOUT_S,
        output_tokens: int = OUTPUT_TOKENS,
    ) -> None:
        # Generators, classes and callable objects have no single return value or no docstring of their own.
        if not (inspect.isfunction(function) or inspect.ismethod(function)) or inspect.isasyncgenfunction(function):
            raise _invalid(
                f"{function!r} cannot be a tool", "decorate a function that is written with def or async def"
            )
        if timeout_s <= 0 or output_tokens < 1:
            raise _invalid(
                f"{function.__qualname__}: timeout_s={timeout_s!r}, output_tokens={output_tokens!r}",
                "give it more than 0 seconds and at least one token, or leave them out",
            )
        functools.update_wrapper(self, function)
        self._function: Callable[..., Any] = function
        self._location = f"{function.__module__}.{function.__qualname__}"
        summary, documented = parse_docstring(inspect.getdoc(function) or "")
        self._adapter = _adapter_of(function, documented)
        self.name = checked_name(name or function.__name__)
        self.description = description or summary
        if not self.description:
            raise _invalid(
                f"{function.__qualname__} has no description: it has no docstring, or one that begins with a section",
                'write a docstring, or @tool(description="Counts the words of a text.")',
            )
        schema = self._adapter.json_schema(schema_generator=_Untitled)
        for table in (schema, *schema.get("$defs", {}).values()):
            table.pop("title", None)
        self.parameters: Mapping[str, Any] = {"type": "object", "properties": {}, **schema}
        self.timeout_s, self.output_tokens = timeout_s, output_tokens

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, without validation."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name} of {self._location}>"

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """Return the function's value: text unchanged, other values as JSON, None as "(no output)".

        `ok=False` if the arguments are invalid or the function raised `ValueError`; any other exception is raised.
        Raises `ToolServerError` if the function returned a value that JSON cannot hold.
        """
        try:
            if inspect.iscoroutinefunction(self._function):
                return self._result_of(await self._function(**self._validate(arguments)))
            return await in_thread(lambda: self._result_of(self._function(**self._validate(arguments))))
        except _PARSING_ERRORS:
            raise
        except ValueError as error:
            return ToolResult(text=str(error) or f"{self.name} raised {type(error).__name__}", ok=False)
        except SystemExit as error:
            # It would end the run.
            raise RuntimeError(f"it called sys.exit({error.code})").with_traceback(error.__traceback__) from None

    def _validate(self, arguments: Mapping[str, JsonValue]) -> dict[str, Any]:
        """The arguments converted to the types of the hints; a missing one keeps the function's default."""
        try:
            return self._adapter.validate_json(json.dumps(whole(dict(arguments))), strict=True)
        except ValidationError as error:
            problems = [
                f"{'.'.join(map(str, problem['loc'])) or 'all'}: {problem['msg']}, "
                f"not {json.dumps(problem['input'], default=repr)[:80]}"
                for problem in error.errors(include_url=False)
            ]
            if len(problems) > _SHOWN_PROBLEMS:
                problems[_SHOWN_PROBLEMS:] = [f"and {len(problems) - _SHOWN_PROBLEMS} more"]
            raise ValueError(f"invalid arguments for {self.name}: {'; '.join(problems)}") from error

    def _result_of(self, value: object) -> ToolResult:
        """The function's return value as text."""
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
        except ValueError as error:
            # An unknown type, or a value that contains itself.
            what = f"{self.name} returned {type(value).__name__}, which JSON cannot hold: {error} ({self._location})"
            fix = "return text, or lists, dictionaries, dataclasses and models of plain values"
            raise ToolServerError(what, code="tool-broken", fix=fix) from error
        return ToolResult(text=text)


class ToolOptions(TypedDict, total=False):
    """Options of `tool`.

    Attributes:
        name: the tool's name; by default the function's
        description: what the model reads; by default the docstring up to its first section
        timeout_s: seconds of one call
        output_tokens: of its text, four characters counted as a token; longer text is cut
    """

    name: str
    description: str
    timeout_s: float
    output_tokens: int


@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...
@overload
def tool(function: Callable[P, R], /, **options: Unpack[ToolOptions]) -> FunctionTool[P, R]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
    """Make a typed function, or an object's method, a tool: `@tool`, `@tool(timeout_s=5)`, `tool(store.find)`.

    Args:
        function: the function or bound method.
        options: see `ToolOptions`: name, description, timeout_s, output_tokens.

    Raises:
        UsageError: the function cannot be a tool.
    """
    make = functools.partial(FunctionTool, **options)
    return make if function is None else make(function)


# --- arguments --------------------------------------------------------------------------------------------------------


def parse_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """(description, {argument: its description}) of a docstring in the style of Google, NumPy or `:param name:`.

    The description is everything before the first section. Each paragraph is joined to one line. `docstring` is
    without indentation, as `inspect.getdoc` returns it.
    """
    try:
        # The parser takes a section in the first line for prose, so a placeholder stands before it.
        parsed = docstring_parser.parse(f"-\n\n{docstring}")
    except (docstring_parser.ParseError, IndexError, ValueError):
        # A section is broken, and the first paragraph is still good.
        return " ".join(docstring.partition("\n\n")[0].split()), {}
    paragraphs = re.split(r"\n\s*\n", (parsed.description or "").removeprefix("-").strip())
    arguments = {
        name.strip(): " ".join(parameter.description.split())
        for parameter in parsed.params
        for name in parameter.arg_name.split(",")  # NumPy style: "a, b : int"
        if parameter.description
    }
    return "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs), arguments


def _adapter_of(function: Callable[..., Any], documented: Mapping[str, str]) -> TypeAdapter[Any]:
    """The validator of a function's arguments, as a dictionary of those that are given."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise _invalid(
            f"the type hints of {function.__qualname__} cannot be read: {error}",
            "import or define the type at the top of the module",
        ) from error
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        what = f"{function.__qualname__}: argument {name!r} cannot be an argument of a tool"
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise _invalid(what, "give each argument its own name, by which a model passes it")
        if name == "self" and name not in hints:
            raise _invalid(what, "create the object first and make the tool from its method: tool(thing.method)")
        if name not in hints:
            raise _invalid(f"{what} without a type hint", f"e.g. {name}: str")
        hint: Any = hints[name]
        described = any(isinstance(extra, FieldInfo) and extra.description for extra in get_args(hint)[1:])
        if name in documented and not described:
            hint = Annotated[hint, Field(description=documented[name])]
        try:
            TypeAdapter(hint).json_schema()
        except PydanticUserError as error:
            reason = str(error).partition("\n")[0].partition(". Set `")[0]
            fix = "use types that JSON has: str, int, float, bool, list, dict, Literal, Enum, dataclasses, models"
            raise _invalid(f"{what}: {reason}", fix) from error
        if parameter.default is not parameter.empty:
            try:
                shown = {"default": to_jsonable_python(parameter.default)}
            except PydanticSerializationError:
                # A default that JSON cannot hold is not in the schema, and still applies.
                shown = {}
            hint = NotRequired[Annotated[hint, Field(json_schema_extra=shown)]]
        fields[name] = hint
    arguments = TypedDict("Arguments", fields)  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]
    arguments.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    return TypeAdapter(arguments)


class _Untitled(GenerateJsonSchema):
    """Omits the titles that repeat the fields' names: a model reads every schema, in every turn."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def checked_name(name: str) -> str:
    """Return `name`; raises `UsageError` if it is not an identifier of at most 64 ASCII characters."""
    if not (name.isascii() and name.isidentifier() and len(name) <= 64) or keyword.iskeyword(name):
        raise _invalid(
            f"{name!r} cannot be a tool's name: letters, digits and _, at most 64 of them", '@tool(name="word_count")'
        )
    return name


def _invalid(what: str, fix: str) -> UsageError:
    return UsageError(what, code="tool-invalid", fix=fix)


# --- functions named in a recipe --------------------------------------------------------------------------------------


class FunctionConfig(ToolConfig):
    """A typed Python function of your own.

    The function is imported when the tool is made and by `--dry-run`, never to validate a recipe.

    Attributes:
        function: `"my_tools.py:word_count"`, a file relative to the recipe's, or to where midstream runs, or
            `"package.module:name"`
    """

    function: str

    @field_validator("function")
    @classmethod
    def _has_both_parts(cls, function: str) -> str:
        if not is_reference(function):
            raise ValueError("not of the form my_tools.py:word_count or my_package.tools:word_count")
        return function

    def check_machine(self, where: str) -> None:
        """Import the function as a tool."""
        context: Any = SimpleNamespace(name=where.rpartition(".")[2])
        self.build(context)

    def build(self, context: Context) -> Tool:
        """Import `function` as a tool with the name of the recipe's table.

        It may be a function with or without `@tool`, an object's method, or an object or class that implements `Tool`.
        Raises `UsageError` if it cannot be imported, or cannot be a tool.
        """
        config = own_tool("tool", self.function, load(self.function, _EXAMPLE))
        return validate(config, {}, f"tools.{context.name}").build(context)


def own_tool(kind: Kind, reference: str, value: object) -> type[ToolConfig]:
    """The settings of a tool of your own: of a class its parameters, of a function or an object none."""
    if isinstance(value, type) and issubclass(value, ToolConfig):
        return value
    if isinstance(value, type):
        return class_settings(
            ToolConfig, reference, value, lambda made, context: _find_tool(reference, made, context.name)
        )

    def build(self: ToolConfig, context: Context) -> Tool:
        return _find_tool(reference, value, context.name)

    return settings_of(ToolConfig, reference, lambda: value, build=build, __doc__=inspect.getdoc(value))


def _find_tool(reference: str, found: object, name: str) -> Tool:
    """What a reference names as a tool called `name`. Raises `UsageError` if it cannot be one."""
    if inspect.isfunction(found) or inspect.ismethod(found):
        return tool(found, name=name)
    if not isinstance(found, Tool):
        raise RecipeError(
            f"{reference} is neither a function nor a tool: {found!r:.100}",
            code="tool-invalid",
            fix="name a typed function with a docstring, or an object with all of `core.tool.Tool`: docs/tools.md",
        )
    if why := unusable_schema(found.parameters):
        raise RecipeError(
            f"the parameters of {reference} cannot be used: {why}",
            code="tool-schema-invalid",
            fix="correct the tool's `parameters`",
        )
    return Renamed(found, checked_name(name))
