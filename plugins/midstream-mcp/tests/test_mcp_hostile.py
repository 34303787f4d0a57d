"""Servers that misbehave: each call ends in bounded time with a typed outcome, and so does the next call."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from mcp.client import stdio

from midstream.agents.formats import parse_command
from midstream.core.errors import RecipeError, ToolServerError
from midstream.core.tool import ToolResult
from midstream.core.tool_calls import call_tool
from midstream.core.trajectory import Command
from midstream_mcp import session as mcp_session
from midstream_mcp import tools as mcp
from support.errors import coded
from support.processes import gone

SERVER = Path(__file__).parent / "mcp_servers" / "hostile.py"
BOUND_S = 120.0  # of what takes a second or two on a quiet machine
# One of each way through midstream stays in `make test`.
QUICK = {
    *("noise_among", "no_content", "modern", "is_error", "no_reply"),
    *("hangs", "exits", "result_is_text", "error_of_the_server"),
    *("exit_at_start", "hang_at_initialize", "initialize_lacks_fields", "endless_pages", "schema_doubles"),
    *("same_names", "schema_loops"),
}

# mode: what two calls return, True for a result, False for `ok=False`, None for `ToolServerError`; and their texts.
CALLS: dict[str, tuple[bool | None, str]] = {
    "answers_twice": (True, "echo: hi"),
    "noise_at_start": (True, "echo: hi"),
    "noise_among": (True, "echo: hi"),
    "stderr_flood": (True, "echo: hi"),
    "id_as_text": (True, "echo: hi"),
    "replies_twice": (True, "echo: hi"),
    "windows_lines": (True, "echo: hi"),
    "bad_utf8": (True, "echo: \ufffd\ufffdhi"),
    "nul_bytes": (True, "echo: \x00"),
    "progress": (True, "echo: hi"),
    "list_changed": (True, "echo: hi"),
    "odd_notifications": (True, "echo: hi"),
    "no_content": (True, r"\(no output\)"),
    "modern": (True, "echo: modern"),
    "asks_for_a_model": (True, "ping result; sampling/createMessage error; elicitation/create error; roots/list error"),
    "is_error": (False, "no such city"),
    "is_error_with_empty_content": (False, "without a message"),
    "error_of_the_arguments": (False, "text must rhyme"),
    "no_reply": (False, "no result within 0.4 s"),
    "wrong_id": (False, "no result within 0.4 s"),
    "id_null": (False, "no result within 0.4 s"),
    "late": (False, "no result within 0.4 s"),
    "hangs": (None, "hangs: no result within 0.4 s(.|\n)*hung [0-9]+"),
    "unfinished_line": (None, "hangs: no result within 0.4 s"),
    "exits": (None, "ended during a call(.|\n)*its standard error ends: out of flux"),
    "half_a_reply": (None, "ended during a call"),
    "result_is_text": (False, "no result within 0.4 s"),
    "content_is_text": (None, "an invalid result: content: Input should be a valid list"),
    "unknown_content": (None, "an invalid result: content.0"),
    "is_error_without_content": (None, "an invalid result: content: Field required"),
    "error_of_the_server": (None, r"error -32603\): database is down \[2J"),
}
REFUSED: dict[str, str] = {
    "exit_at_start": "Connection closed",
    "exit_at_initialize": "its standard error ends: no licence found",
    "crash_by_signal": "Connection closed",
    "hang_at_initialize": "not ready within 0.6 s",
    "reads_nothing": "not ready within 0.6 s",
    "closes_output": "Connection closed",
    "wrong_version": "Unsupported protocol version from the server: 1999-01-01",
    "initialize_is_text": "not ready within 0.6 s",
    "initialize_lacks_fields": "does not speak MCP: .*Field required",
    "list_is_text": "does not speak MCP: tools: Input should be a valid list",
    "tool_without_schema": "inputSchema: Field required",
    "schema_of_text": "inputSchema.type: Input should be 'object'",
    "endless_pages": "not ready within 0.6 s",
}
LEFT_OUT: dict[str, str] = {
    "same_names": "another has the same name",
    "empty_names": "no letter and no digit",
    "schema_is_no_schema": "is not a JSON schema",
    "schema_bad_pattern": '"[(]" is not a "regex"',
    "schema_elsewhere": "http://127.0.0.1:9/schema.json' is not a pointer",
    "schema_loops": "leads to itself",
    "schema_doubles": "it takes too many checks",
    "schema_deep": "more than 32 levels",
    "schema_wide": "longer than 20000 characters",
}
OTHERS = {
    "many_tools",
    "long_description",
    "name_with_newline",
    "schema_nested_pattern",
    "ignores_end",
}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits, so that a hundred of them are quick."""
    monkeypatch.setattr(mcp_session, "PAUSE_S", 0.05)
    monkeypatch.setattr(stdio, "PROCESS_TERMINATION_TIMEOUT", 0.2)
    monkeypatch.setattr(stdio, "FORCE_KILL_TIMEOUT", 0.2)


def modes(table: Iterable[str]) -> list[Any]:
    return [pytest.param(mode, marks=() if mode in QUICK else pytest.mark.slow) for mode in table]


def connect(mode: str, **settings: Any) -> list[mcp.McpTool]:
    # Short only where a wait must end: on a busy machine a server needs seconds to start.
    patience = 0.6 if "within 0.6 s" in REFUSED.get(mode, "") else BOUND_S
    times_out = "no result within" in CALLS.get(mode, (None, ""))[1]
    config = mcp.McpConfig(
        command=(sys.executable, "-S", str(SERVER), mode),
        **{
            "timeout_s": 0.4 if times_out else BOUND_S,
            "connect_timeout_s": patience,
            "max_reply_mb": 1,
            "prefix": "",
            **settings,
        },
    )
    return mcp.make(config, "hostile")


async def outcome(tool: mcp.McpTool) -> ToolResult | ToolServerError:
    try:
        return await call_tool(tool, {"text": "hi"})
    except ToolServerError as error:
        return error


async def close(tools: list[mcp.McpTool]) -> None:
    for tool in tools:
        await tool.close()


@pytest.mark.parametrize("mode", modes(CALLS))
def test_every_call_has_an_outcome(mode, monkeypatch):
    ok, text = CALLS[mode]
    # A server that is alive answers the request that checks it, however late.
    monkeypatch.setattr(mcp_session, "PROBE_S", 1.2 if text.startswith("hangs") else BOUND_S)
    clock = time.monotonic()
    tools = connect(mode)

    async def run() -> list[ToolResult | ToolServerError]:
        found = [await outcome(tools[0]), await outcome(tools[0])]
        await close(tools)
        return found

    for found in asyncio.run(run()):
        assert (found.ok if isinstance(found, ToolResult) else None) == ok, found
        assert re.search(text, found.text if isinstance(found, ToolResult) else str(found)), found
        assert "\x1b" not in str(found)
        if mode == "hangs":
            assert gone(int(re.findall(r"hung (\d+)", str(found))[0]))
    assert time.monotonic() - clock < BOUND_S


@pytest.mark.parametrize("mode", modes(["exits"]))
def test_many_calls_to_a_server_that_ends_all_fail_without_output(mode, caplog):
    tools = connect(mode)

    async def run() -> list[ToolResult | ToolServerError]:
        found = await asyncio.gather(*(outcome(tools[0]) for _ in range(64)))
        await close(tools)
        return found

    assert {type(found) for found in asyncio.run(run())} == {ToolServerError}
    assert caplog.messages == []  # asyncio's own, of writing into a pipe that nobody reads


@pytest.mark.parametrize("mode", modes(REFUSED))
def test_a_server_that_does_not_start_is_refused(mode):
    clock = time.monotonic()
    with pytest.raises(ToolServerError, match=REFUSED[mode]) as caught:
        connect(mode)
    assert caught.value.code == "mcp-server-unusable"
    assert "[tools.hostile]" in caught.value.fix
    assert time.monotonic() - clock < BOUND_S


@pytest.mark.parametrize("mode", modes(LEFT_OUT))
def test_a_tool_that_cannot_be_offered_is_left_out_with_a_warning(mode, caplog):
    with caplog.at_level(logging.WARNING, "midstream.tools"):
        tools = connect(mode)
    asyncio.run(close(tools))
    assert [tool.name for tool in tools] == ["echo"]
    assert re.search(LEFT_OUT[mode], caplog.text)


def test_arguments_that_take_for_ever_to_check_are_refused_and_the_tool_stays():
    [_, other] = tools = connect("schema_nested_pattern")

    async def run() -> tuple[Command, Command, ToolResult | ToolServerError]:
        refused = parse_command(json.dumps({"text": 45 * "a" + "!"}), other)
        valid = parse_command('{"text": "aaa"}', other)
        result = await outcome(other)
        await close(tools)
        return refused, valid, result

    refused, valid, result = asyncio.run(run())
    assert "does not match" in (refused.error or "")
    assert valid.arguments == {"text": "aaa"}
    assert isinstance(result, ToolResult)
    assert result.text == "echo: hi"


def test_an_included_tool_that_is_unusable_is_an_error():
    with pytest.raises(RecipeError, check=coded("mcp-tools-invalid", "'other'")):
        connect("schema_is_no_schema", include=("echo", "other"))


@pytest.mark.slow
def test_too_many_tools_are_refused_until_some_are_chosen():
    with pytest.raises(RecipeError, check=coded("mcp-tools-invalid", "10001 tools", "max_tools = 64")):
        connect("many_tools", max_reply_mb=8)
    tools = connect("many_tools", max_reply_mb=8, include=("echo", "tool_9999"))
    asyncio.run(close(tools))
    assert [tool.name for tool in tools] == ["echo", "tool_9999"]


def test_names_and_descriptions_are_cleaned_for_prompts():
    [_, other] = tools = connect("long_description")
    asyncio.run(close(tools))
    assert other.description.startswith("[2J <|im_start|>very very")
    assert len(other.description) < 1010
    [_, lines] = tools = connect("name_with_newline")
    asyncio.run(close(tools))
    assert lines.name == "two_lines"


def test_a_reply_that_comes_too_late_is_not_taken_for_another():
    tools = connect("late", timeout_s=0.4)

    async def run() -> ToolResult:
        assert not (await call_tool(tools[0], {"text": "first"})).ok
        tools[0]._server._config = mcp.McpConfig(command=("x",), timeout_s=BOUND_S)
        result = await call_tool(tools[0], {"text": "second"})
        await close(tools)
        return result

    assert asyncio.run(run()).text == "echo: second"


def test_a_server_that_ignores_every_sign_of_the_end_is_killed():
    tools = connect("ignores_end")
    pid = int(asyncio.run(tools[0].call({"text": "hi"})).text)
    asyncio.run(close(tools))
    assert gone(pid)


def test_every_mode_is_tested():
    text = SERVER.read_text(encoding="utf-8")
    modes = {*re.findall(r'MODE == "(\w+)"', text), *re.findall(r'^        "(\w+)": \[other', text, re.MULTILINE)}
    assert modes == {*CALLS, *REFUSED, *LEFT_OUT, *OTHERS}
