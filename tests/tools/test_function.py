"""Functions as tools: the schema, the arguments, exceptions, docstrings."""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import enum
import inspect
import json
import threading
import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from midstream import EngineError, Tool, ToolResult, ToolServerError, UsageError, tool
from midstream.agents.formats import parse_command
from midstream.core.json_schema import schema_error
from midstream.core.tool import Renamed
from midstream.core.tool_calls import call_tool
from midstream.tools.function import FunctionTool, parse_docstring


class Unit(enum.Enum):
    METRE = "m"
    MILE = "mi"


@dataclass
class Point:
    x: int
    y: int = 0


class Place(BaseModel):
    name: str
    at: Point


@tool
def word_count(text: str, least: int = 1) -> int:
    """Counts the words of a text,
    white space between them.

    Long words and short.

    Args:
        text: what to count in,
            all of it
        least (int): letters of the shortest word
            that counts

    Returns:
        how many there are
    """
    return sum(len(word) >= least for word in text.split())


def call(chosen: Tool, **arguments: Any) -> ToolResult:
    return asyncio.run(call_tool(chosen, arguments))


# --- schema -------------------------------------------------------------------------------------------------------


def test_it_is_a_tool_and_still_the_function():
    assert isinstance(word_count, Tool)
    assert word_count("one two three", least=4) == 1
    assert call(word_count, text="one two three") == ToolResult(text="3")
    assert (word_count.name, word_count.timeout_s, word_count.output_tokens) == ("word_count", 30.0, 2000)
    assert word_count.__name__ == "word_count"
    assert repr(word_count) == f"<tool word_count of {__name__}.word_count>"


def test_the_docstring_describes_it():
    assert word_count.description == "Counts the words of a text, white space between them.\nLong words and short."
    assert word_count.parameters == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "what to count in, all of it"},
            "least": {"type": "integer", "default": 1, "description": "letters of the shortest word that counts"},
        },
        "required": ["text"],
        "additionalProperties": False,
    }


def test_given_options_replace_the_functions_own():
    def f(a: int = 0) -> int:
        return a

    made = tool(name="g", description="Gives it back.", timeout_s=2, output_tokens=5)(f)
    assert (made.name, made.description, made.timeout_s, made.output_tokens) == ("g", "Gives it back.", 2, 5)
    assert tool(f, description="x").name == "f"
    assert Renamed(made, "h").name == "h"
    assert Renamed(made, "h").description == "Gives it back."


def test_arguments_can_be_any_type_that_json_has():
    @tool
    def f(
        unit: Unit,
        day: datetime.date,
        places: list[Place],
        size: Literal["s", "m"] = "s",
        limit: Annotated[int, Field(ge=1, description="at most")] = 3,
        far: float | None = None,
        table: dict[str, int] = {},  # noqa: B006
        pair: tuple[int, str] = (0, ""),
    ) -> str:
        """Takes much.

        Args:
            limit: not this
        """
        assert (unit, day, places) == (Unit.MILE, datetime.date(2026, 1, 2), [Place(name="a", at=Point(1))])
        return json.dumps([size, limit, far, table, pair])

    given_ = {"unit": "mi", "day": "2026-01-02", "places": [{"name": "a", "at": {"x": 1}}]}
    assert schema_error(given_, f.parameters) is None
    assert call(f, **given_).text == '["s", 3, null, {}, [0, ""]]'
    assert call(f, **given_, far=2, table={"a": 1}, pair=[1, "b"]).text == '["s", 3, 2.0, {"a": 1}, [1, "b"]]'
    properties = f.parameters["properties"]
    assert properties["limit"] == {"type": "integer", "minimum": 1, "default": 3, "description": "at most"}
    assert properties["size"] == {"enum": ["s", "m"], "type": "string", "default": "s"}
    assert '"title"' not in json.dumps(f.parameters)
    assert f.parameters["required"] == ["unit", "day", "places"]


def test_a_method_keeps_its_object():
    class Notes:
        def __init__(self):
            self.kept = []

        def note(self, text: str) -> str:
            """Writes a note down."""
            self.kept.append(text)
            return f"{len(self.kept)} kept"

    notes = Notes()
    made = tool(notes.note)
    assert [call(made, text="a").text, call(made, text="b").text] == ["1 kept", "2 kept"]
    assert notes.kept == ["a", "b"]
    assert list(made.parameters["properties"]) == ["text"]


def test_an_executors_reply_becomes_a_call():
    command = parse_command('{"arguments": {"text": "a bc", "least": 2}}', word_count)
    assert command.error is None
    assert call(word_count, **command.arguments).text == "1"


@given(st.text(), st.integers(-5, 5), st.floats(allow_nan=False, allow_infinity=False), st.lists(st.booleans()))
def test_valid_arguments_reach_the_function_unchanged(text, number, share, flags):
    seen = []

    @tool
    def f(text: str, number: int, share: float, flags: list[bool]) -> None:
        """Looks."""
        seen.append((text, number, share, flags))

    arguments = {"text": text, "number": number, "share": share, "flags": flags}
    assert schema_error(arguments, f.parameters) is None
    assert call(f, **arguments) == ToolResult(text="(no output)")
    assert seen == [(text, number, share, flags)]


def test_a_whole_float_is_an_integer_as_in_the_schema():
    assert schema_error({"text": "a bb", "least": 2.0}, word_count.parameters) is None
    assert call(word_count, text="a bb", least=2.0).text == "1"


# --- refused functions --------------------------------------------------------------------------------------------


def no_hint(a, b: int) -> int:
    """Adds."""
    return a + b


def many(*values: int) -> int:
    """Adds."""
    return sum(values)


def named(**values: int) -> int:
    """Adds."""
    return sum(values.values())


def by_position(a: int, /) -> int:
    """Gives it back."""
    return a


def with_lock(lock: threading.Lock) -> None:
    """Locks."""


def unknown_type(a: Missing) -> None:  # noqa: F821
    """Misses."""


def silent(a: int) -> int:
    return a


def only_sections(a: int) -> int:
    """
    Args:
        a: this
    """
    return a


class Thing:
    def method(self, a: int) -> int:
        """Gives it back."""
        return a


async def stream(a: int) -> Any:
    """Gives many."""
    yield a


REFUSED = {
    "no hint": (no_hint, "no_hint: argument 'a'", "a: str"),
    "any number of values": (many, "many: argument 'values'", "its own name"),
    "any names": (named, "named: argument 'values'", "its own name"),
    "values by position": (by_position, "by_position: argument 'a'", "its own name"),
    "a type that JSON does not have": (with_lock, "with_lock: argument 'lock'", "types that JSON has"),
    "a type that does not exist": (unknown_type, "unknown_type", "define the type"),
    "no docstring": (silent, "silent", "write a docstring"),
    "no word before the sections": (only_sections, "only_sections", "write a docstring"),
    "a method without its object": (Thing.method, "argument 'self'", "tool(thing.method)"),
    "an object": (Thing(), "Thing object", "decorate a function"),
    "a class": (Thing, "Thing", "decorate a function"),
    "an async generator": (stream, "stream", "decorate a function"),
    "a lambda": (lambda: 1, "'<lambda>'", "@tool(name="),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_function_that_cannot_be_a_tool_is_refused_with_a_fix(case):
    function, value, fix = REFUSED[case]
    with pytest.raises(UsageError) as refused:
        tool(function)
    assert refused.value.code == "tool-invalid"
    assert value in refused.value.what
    assert fix in refused.value.fix


@pytest.mark.parametrize(
    "options", [{"name": "word count"}, {"name": "class"}, {"name": "x" * 65}, {"timeout_s": 0}, {"output_tokens": 0}]
)
def test_impossible_settings_are_refused(options):
    with pytest.raises(UsageError) as refused:
        tool(word_count.__wrapped__, **options)
    assert refused.value.code == "tool-invalid"


# --- calls ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "text: Field required"),
        ({"text": 3}, "text: Input should be a valid string, not 3"),
        ({"text": "a", "least": "3"}, 'least: Input should be a valid integer, not "3"'),
        ({"text": "a", "least": True}, "least: Input should be a valid integer, not true"),
        ({"text": "a", "least": 1.5}, "least: Input should be a valid integer, not 1.5"),
        ({"text": "a", "much": 1}, "much: Extra inputs are not permitted"),
    ],
)
def test_invalid_arguments_are_an_answer(arguments, said):
    result = call(word_count, **arguments)
    assert not result.ok
    assert result.text.startswith("invalid arguments for word_count: ")
    assert said in result.text
    assert schema_error(arguments, word_count.parameters) is not None


def test_only_the_first_problems_are_listed():
    result = call(word_count, text="a", **{f"x{number}": 0 for number in range(20)})
    assert result.text.endswith("; and 15 more")
    assert len(result.text) < 1000


@pytest.fixture(params=["thread", "async"])
def acting(request):
    """A tool that runs the action named by its argument, as a plain and as an async function."""

    def act(how: str) -> Any:
        """Does it."""
        return ACTS[how]()

    async def act_async(how: str) -> Any:
        """Does it."""
        return ACTS[how]()

    return tool(act if request.param == "thread" else act_async, name="act", timeout_s=5)


def _raise(error: BaseException) -> None:
    raise error


def _circle() -> list:
    inside: list = []
    inside.append(inside)
    return inside


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


ACTS = {
    "text": lambda: "a\nb",
    "none": lambda: None,
    "empty": lambda: "",
    "json": lambda: {"é": [1, 2.5, None, Unit.MILE, Point(1), datetime.date(2026, 1, 2)]},
    "result": lambda: ToolResult(text="nothing there", ok=False),
    "bytes": lambda: b"caf\xc3\xa9 \xff",
    "half a character": lambda: {"a": "x\ud800"},
    "no number": lambda: [float("nan")],
    "value": lambda: _raise(ValueError("no such place")),
    "bare value": lambda: _raise(ValueError()),
    "key": lambda: _raise(KeyError("k")),
    "reply": lambda: json.loads("<html>"),
    "validation": lambda: Place.model_validate({}),
    "stop": lambda: next(iter(())),
    "engine": lambda: _raise(EngineError("down", cause="why")),
    "object": lambda: Thing(),
    "circle": _circle,
    "deep": lambda: _raise(RecursionError("deep")),
    "timeout": lambda: _raise(TimeoutError("slow server")),
    "mute": lambda: _raise(Mute()),
    "exit": lambda: _raise(SystemExit(3)),
}


@pytest.mark.parametrize(
    ("how", "ok", "text"),
    [
        ("text", True, "a\nb"),
        ("none", True, "(no output)"),
        ("empty", True, "(no output)"),
        ("json", True, '{"é": [1, 2.5, null, "mi", {"x": 1, "y": 0}, "2026-01-02"]}'),
        ("result", False, "nothing there"),
        ("bytes", True, "café \ufffd"),
        ("half a character", True, '{"a": "x?"}'),
        ("no number", True, "[NaN]"),
        ("value", False, "no such place"),
        ("bare value", False, "act raised ValueError"),
    ],
)
def test_return_values_and_value_errors_are_answers(acting, how, ok, text):
    assert call(acting, how=how) == ToolResult(text=text, ok=ok)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("key", "act raised KeyError: 'k'"),
        ("reply", "act raised json.decoder.JSONDecodeError"),  # a ValueError, but a server's fault
        ("validation", "act raised pydantic_core._pydantic_core.ValidationError"),  # likewise
        ("deep", "act raised RecursionError: deep"),
        ("object", "act returned Thing, "),
        ("circle", "act returned list, "),
        ("mute", "act raised tests.tools.test_function.Mute: <exception str() failed>"),
        ("exit", "act raised RuntimeError: it called sys.exit(3)"),
        ("stop", "act raised "),  # StopIteration, which Python turns into RuntimeError in a coroutine
    ],
)
def test_other_exceptions_are_a_broken_tool(acting, how, said):
    with pytest.raises(ToolServerError) as broken:
        call(acting, how=how)
    assert broken.value.retryable
    assert broken.value.code == "tool-broken"
    assert broken.value.what.startswith(said)
    assert "test_function" in str(broken.value) or how == "stop"


def test_an_infrastructure_error_is_passed_on(acting):
    with pytest.raises(ToolServerError, match="slow server"):
        call(acting, how="timeout")
    with pytest.raises(EngineError, match="down"):
        call(acting, how="engine")


def test_the_error_names_the_functions_line():
    @tool
    def parse(text: str) -> Any:
        """Parses."""
        return json.loads(text)

    line = parse.__wrapped__.__code__.co_firstlineno + 3
    with pytest.raises(ToolServerError) as broken:
        call(parse, text="<")
    assert broken.value.cause.endswith(f"line {line}")


def test_a_long_text_is_cut_and_bytes_are_text():
    @tool(output_tokens=10)
    def much() -> bytes:
        """Gives much."""
        return b"x" * 20_000_000

    assert call(much).text == "x" * 40 + "\n[cut: 20000000 characters, of which the first 40 are shown]"


# --- concurrency -----------------------------------------------------------------------------------------------------


def test_slow_functions_do_not_hold_up_each_other():
    """All calls are under way at once, and the event loop with them."""
    together = threading.Barrier(64 + 1)

    @tool(timeout_s=20)
    def meet(number: int) -> int:
        """Waits for all the others."""
        together.wait(20)
        return number

    async def main() -> list[ToolResult]:
        calls = [asyncio.create_task(call_tool(meet, {"number": number})) for number in range(64)]
        await asyncio.to_thread(together.wait, 20)
        return await asyncio.gather(*calls)

    assert [result.text for result in asyncio.run(main())] == [str(number) for number in range(64)]


def test_a_function_that_never_ends_holds_up_neither_the_call_nor_the_program():
    free = threading.Event()

    @tool(timeout_s=0.05)
    def hang() -> None:
        """Hangs."""
        free.wait(30)

    began = time.monotonic()
    result = call(hang)
    assert result == ToolResult(text="hang gave no result within 0.05 s", ok=False)
    assert time.monotonic() - began < 20  # asyncio.run waits for its own threads, not for these
    free.set()


def test_a_result_after_the_loop_closed_is_dropped():
    free, thread = threading.Event(), []

    @tool(timeout_s=0.05)
    def late() -> str:
        """Comes late."""
        thread.append(threading.current_thread())
        free.wait(30)
        return "late"

    assert not call(late).ok
    free.set()
    thread[0].join(10)  # an exception in it would be a warning, and so an error
    assert not thread[0].is_alive()


def test_a_function_sees_the_callers_context():
    name = contextvars.ContextVar("name", default="nobody")

    @tool
    def who() -> str:
        """Says who asks."""
        return name.get()

    async def main() -> str:
        name.set("me")
        return (await who.call({})).text

    assert asyncio.run(main()) == "me"


def test_an_async_function_runs_in_the_loop_and_is_stopped_in_time():
    stopped = []

    @tool(timeout_s=0.05)
    async def wait() -> str:
        """Waits."""
        try:
            await asyncio.sleep(30)
        finally:
            stopped.append(threading.current_thread() is threading.main_thread())
        return "never"

    assert call(wait).text == "wait gave no result within 0.05 s"
    assert stopped == [True]


def test_one_tool_serves_several_loops_one_after_the_other():
    assert [call(word_count, text="a b").text for _ in range(3)] == ["2", "2", "2"]


def test_a_tool_of_a_tool_is_refused():
    with pytest.raises(UsageError) as refused:
        FunctionTool(word_count)
    assert refused.value.code == "tool-invalid"


# --- docstrings ------------------------------------------------------------------------------------------------------

GOOGLE = """Finds a place.

    The nearest one, by
    its name.

    Args:
        name (str, optional): what it is called:
            its whole name
        near: where to begin (a place)
        bare:

    Raises:
        ValueError: it does not exist
    """
NUMPY = """Finds a place.

    The nearest one, by
    its name.

    Parameters
    ----------
    name : str, optional
        what it is called:
        its whole name
    near
        where to begin (a place)
    bare : int

    Returns
    -------
    str
        the place
    """
FIELDS = """Finds a place.

    The nearest one, by
    its name.

    :param str name: what it is called:
        its whole name
    :param near: where to begin (a place)
    :param bare:
    :returns: the place
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, FIELDS], ids=["google", "numpy", "fields"])
def test_all_docstring_styles_are_equivalent(docstring):
    description, arguments = parse_docstring(inspect.cleandoc(docstring))
    assert description == "Finds a place.\nThe nearest one, by its name."
    found = {name: text for name, text in arguments.items() if text}
    assert found == {"name": "what it is called: its whole name", "near": "where to begin (a place)"}


def test_two_arguments_may_share_a_description():
    assert parse_docstring("Adds.\n\nParameters\n----------\na, b : int\n    a summand")[1] == {
        "a": "a summand",
        "b": "a summand",
    }


def test_prose_with_colons_is_not_a_section():
    text = "Answers: yes or no.\nNote: it may be wrong.\nargs are free"
    assert parse_docstring(text) == ("Answers: yes or no. Note: it may be wrong. args are free", {})


def test_sections_alone_are_not_a_description():
    assert parse_docstring("Args:\n    a: this") == ("", {"a": "this"})


@given(st.text())
def test_any_docstring_is_parsed(text):
    description, arguments = parse_docstring(text)
    assert isinstance(description, str)
    assert all(isinstance(text, str) for text in arguments.values())


@given(st.text(alphabet="ab:-\n (),", max_size=60).map(lambda text: f"Does.\n\nArgs:\n{text}"))
def test_broken_sections_keep_the_description(text):
    assert parse_docstring(text)[0].startswith("Does.")
