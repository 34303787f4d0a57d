"""MCP servers as tools: results, names, environment, event loops, restarts, the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import mcp_types as types
import pytest

from midstream.core.errors import RecipeError, ToolServerError
from midstream.core.tool import Tool, ToolResult
from midstream.core.tool_calls import call_tool
from midstream_mcp import tools as mcp
from midstream_mcp.tools import identifier
from support.errors import coded, raises
from support.processes import gone

SERVERS = Path(__file__).parent / "mcp_servers"
HONEST = (sys.executable, str(SERVERS / "honest.py"))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@contextmanager
def serving(port: int, server: tuple[str, ...] = HONEST) -> Iterator[str]:
    """The address of a server over HTTP."""
    process = subprocess.Popen([*server, "http", str(port)], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(free_port()) as address:
        yield address


def over(transport: str, url: str, **settings: Any) -> mcp.McpConfig:
    peer: dict[str, Any] = {"command": (*HONEST, "stdio")} if transport == "stdio" else {"url": url}
    return mcp.McpConfig(**peer, **{"timeout_s": 10, "prefix": "", **settings})


def call(tools: list[mcp.McpTool], name: str, /, **arguments: Any) -> ToolResult:
    """Call in a new event loop."""
    return asyncio.run(call_tool(next(tool for tool in tools if tool.name == name), arguments))


def close(tools: list[mcp.McpTool]) -> None:
    async def run() -> None:
        for tool in tools:
            await tool.close()

    asyncio.run(run())


@pytest.fixture(scope="module", params=["stdio", "http"])
def tools(request: pytest.FixtureRequest, url: str) -> Iterator[list[mcp.McpTool]]:
    made = mcp.make(over(request.param, url), "honest")
    yield made
    close(made)


def test_a_servers_tools_are_tools(tools):
    assert all(isinstance(tool, Tool) for tool in tools)
    [add] = [tool for tool in tools if tool.name == "add"]
    assert add.description == "Adds two whole numbers."
    assert set(add.parameters["properties"]) == {"a", "b"}
    assert call(tools, "add", a=2, b=3) == ToolResult(text="5")
    assert call(tools, "half_pair_name").text == "here"


def test_results_of_every_kind_become_text(tools):
    assert '"born": "1815"' in call(tools, "person", name="Ada").text
    assert call(tools, "picture").text == "[image: image/png, 2 kB]"
    assert call(tools, "many").text.split("\n") == [
        "first",
        "[resource: file:///notes, text/plain]",
        "a note",
        "[resource: file:///b, application/zip, 3 bytes]",
        "[resource: https://example.org/map, unknown type, 2 kB]",
        "last",
    ]
    assert call(tools, "long", characters=50_000).text.endswith("of which the first 16000 are shown]")


def test_a_failed_call_is_an_answer(tools):
    failed, wrong = call(tools, "fails"), call(tools, "add", a="two", b=3)
    assert (failed.ok, wrong.ok) == (False, False)
    assert "fails" in failed.text
    assert "integer" in wrong.text


def test_sixty_four_calls_at_once_and_one_of_them_cancelled(tools):
    async def run() -> list[Any]:
        [slow] = [tool for tool in tools if tool.name == "slow"]
        calls = [asyncio.create_task(call_tool(slow, {"seconds": 0.3})) for _ in range(64)]
        await asyncio.sleep(0.1)
        calls[0].cancel()
        return await asyncio.gather(*calls, return_exceptions=True)

    clock = time.monotonic()
    first, *others = asyncio.run(run())
    assert isinstance(first, asyncio.CancelledError)
    assert {result.text for result in others} == {"awake"}
    assert time.monotonic() - clock < 10
    assert call(tools, "add", a=1, b=1).text == "2"


def test_a_slow_call_is_not_a_broken_server(url):
    made = mcp.make(over("http", url, timeout_s=0.3, include=("slow",)), "honest")
    assert call(made, "slow", seconds=2.0) == ToolResult(text="slow: no result within 0.3 s", ok=False)
    close(made)


@pytest.mark.slow
def test_a_server_that_goes_away_and_comes_back_is_used_again():
    port = free_port()
    with serving(port) as address:
        made = mcp.make(over("http", address, include=("add",)), "honest")
    with pytest.raises(ToolServerError, check=coded("mcp-server-failed", "'honest'", "ConnectError")) as caught:
        call(made, "add", a=1, b=1)
    assert caught.value.retryable
    with serving(port):
        assert call(made, "add", a=1, b=1).text == "2"
        close(made)


# --- choosing ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_names_have_the_tables_name_as_a_prefix():
    made = mcp.make(over("stdio", "", prefix=None, include=("add", "half.pair-name")), "my-server")
    assert [tool.name for tool in made] == ["my_server_add", "my_server_half_pair_name"]
    assert call(made, "my_server_half_pair_name").text == "here"
    close(made)
    for prefix in ("shop", "shop_"):
        made = mcp.make(over("stdio", "", prefix=prefix, include=("add",)), "my-server")
        assert [tool.name for tool in made] == ["shop_add"]
        close(made)


def test_tools_can_be_chosen(url):
    made = mcp.make(over("http", url, include=("add", "slow"), exclude=("slow",)), "honest")
    assert [tool.name for tool in made] == ["add"]
    close(made)
    for settings, value in [
        ({"include": ("add", "subtract")}, "'subtract'"),
        ({"max_tools": 3}, "13 tools"),
        ({"include": ("add",), "exclude": ("add",)}, "no usable tool"),
    ]:
        with pytest.raises(RecipeError) as refused:
            mcp.make(over("http", url, **settings), "honest")
        assert refused.value.code == "mcp-tools-invalid"
        assert value in refused.value.what


@pytest.mark.parametrize(("name", "made"), [("a-b.c", "a_b_c"), ("7up", "_7up"), ("é\n", "__"), ("x_1", "x_1")])
def test_identifiers(name, made):
    assert identifier(name) == made


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"command": ("x",), "url": "http://127.0.0.1/mcp"},
        {"url": "ftp://127.0.0.1/mcp"},
        {"url": "http://"},
        {"url": "http://127.0.0.1/a b"},
        {"url": "http://127.0.0.1/", "env_pass": ("KEY",)},
        {"command": ("x",), "headers_env": {"a": "KEY"}},
        {"command": ("x",), "timeout_s": 0},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError, match="McpConfig"):
        mcp.McpConfig(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"command": ("x",), "env_pass": ("sk-12345",)},
        {"url": "http://127.0.0.1/", "headers_env": {"Authorization": "Bearer sk-12345"}},
        {"url": "http://127.0.0.1/mcp?key=sk-12345"},
        {"url": "http://me:sk-12345@127.0.0.1/mcp"},
    ],
)
def test_a_key_in_the_recipe_is_refused_and_not_repeated(settings):
    with pytest.raises(RecipeError) as caught:
        mcp.McpConfig(**settings)
    assert caught.value.code == "secret-in-recipe"
    assert "12345" not in str(caught.value)


# --- processes ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_server_gets_only_the_environment_that_its_settings_name(monkeypatch):
    monkeypatch.setenv("MIDSTREAM_TEST_KEY", "s3cret-value")
    monkeypatch.setenv("MIDSTREAM_TEST_OTHER", "x")
    made = mcp.make(over("stdio", "", env_pass=("MIDSTREAM_TEST_KEY",), include=("environment", "secret")), "honest")
    names = set(call(made, "environment").text.split())
    assert names <= {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "MIDSTREAM_TEST_KEY", "LC_CTYPE"}
    assert call(made, "secret").text == "***"  # a key that the server repeats reaches no trace
    assert "s3cret" not in repr([vars(tool) for tool in made])
    close(made)


def test_a_missing_variable_or_command_is_refused(monkeypatch):
    monkeypatch.delenv("MIDSTREAM_TEST_KEY", raising=False)
    for config, code, value in [
        (over("stdio", "", env_pass=("MIDSTREAM_TEST_KEY",)), "missing-key", "$MIDSTREAM_TEST_KEY"),
        (mcp.McpConfig(command=("no-such-program",)), "command-not-found", "'no-such-program'"),
        (mcp.McpConfig(command=(sys.executable,), cwd=Path("/no/such/place")), "command-not-found", "No such file"),
    ]:
        with pytest.raises(RecipeError) as refused:
            mcp.make(config, "honest")
        assert refused.value.code == code
        assert value in refused.value.what


def test_keys_are_removed_from_the_servers_output(monkeypatch):
    monkeypatch.setenv("MIDSTREAM_TEST_KEY", "s3cret-value")
    script = "import os, sys; sys.exit('bad key ' + os.environ['MIDSTREAM_TEST_KEY'])"
    with raises("mcp-server-unusable", "'honest'", "bad key ***") as caught:
        mcp.make(mcp.McpConfig(command=(sys.executable, "-c", script), env_pass=("MIDSTREAM_TEST_KEY",)), "honest")
    assert "s3cret" not in str(caught.value)


KEY = 's3cr&t/"välue" 0123456789'


def echoing(mode: str = "") -> list[mcp.McpTool]:
    """The tools of a server that repeats its key everywhere."""
    command = (sys.executable, "-S", str(SERVERS / "echoing.py"), *filter(None, [mode]))
    return mcp.make(mcp.McpConfig(command=command, env_pass=("MIDSTREAM_TEST_MCP_KEY",), prefix=""), "echoing")


def assert_hidden(text: str) -> None:
    """No six characters of the key in a row, as they are or as JSON and URLs write them."""
    forms = (KEY, json.dumps(KEY)[1:-1], quote(KEY, safe=""), quote(KEY, safe="").lower())
    pieces = {form[place : place + 6] for form in forms for place in range(len(form) - 5)}
    assert [piece for piece in pieces if piece in text] == []


def test_a_key_is_hidden_in_descriptions_schemas_and_results(monkeypatch, caplog):
    monkeypatch.setenv("MIDSTREAM_TEST_MCP_KEY", KEY)
    [tool] = made = echoing()
    result = call(made, "look", text="x")
    asyncio.run(tool.close())
    assert result.ok
    assert "looked ***" in result.text
    assert "***" in tool.description
    assert_hidden(f"{result.text} {tool.description} {json.dumps(tool.parameters, ensure_ascii=False)} {caplog.text}")
    assert "its name holds a key" in caplog.text


@pytest.mark.parametrize("mode", ["dies", "refuses"])
def test_a_key_is_hidden_in_errors_of_a_call(monkeypatch, mode):
    monkeypatch.setenv("MIDSTREAM_TEST_MCP_KEY", KEY)
    made = echoing(mode)
    try:
        text = call(made, "look", text="x").text
    except ToolServerError as failure:
        text = str(failure)
    asyncio.run(made[0].close())
    assert "***" in text
    assert_hidden(text)


def test_a_key_is_hidden_in_the_error_of_a_server_that_does_not_start(monkeypatch):
    monkeypatch.setenv("MIDSTREAM_TEST_MCP_KEY", KEY)
    with raises("mcp-server-unusable", "***") as caught:
        echoing("babbles")
    assert_hidden(str(caught.value))


def test_a_key_that_no_header_can_carry_is_refused(monkeypatch):
    monkeypatch.setenv("MIDSTREAM_TEST_MCP_KEY", "abcdefgh\x01ijklmn")
    config = mcp.McpConfig(url="http://127.0.0.1:1/mcp", headers_env={"X-Key": "MIDSTREAM_TEST_MCP_KEY"})
    with pytest.raises(RecipeError, check=coded("key-invalid", "$MIDSTREAM_TEST_MCP_KEY")) as caught:
        mcp.make(config, "remote")
    assert "abcdefgh" not in str(caught.value)


@pytest.mark.slow
def test_a_server_that_dies_is_started_again():
    made = mcp.make(over("stdio", "", include=("process", "die", "slow")), "honest")
    first = int(call(made, "process").text)

    async def both() -> list[Any]:
        by_name = {tool.name: tool for tool in made}
        slow = asyncio.create_task(call_tool(by_name["slow"], {"seconds": 60}))
        await asyncio.sleep(0.2)
        return await asyncio.gather(slow, call_tool(by_name["die"], {}), return_exceptions=True)

    for error in asyncio.run(both()):
        assert isinstance(error, ToolServerError)
        assert error.retryable
        assert "ended during a call" in error.what
    second = int(call(made, "process").text)
    assert second != first
    os.kill(second, signal.SIGKILL)
    assert gone(second)
    with suppress(ToolServerError):  # it may come before the end is noticed
        call(made, "process")
    assert int(call(made, "process").text) not in (first, second)
    close(made)


@pytest.mark.slow
def test_the_last_close_ends_the_server():
    made = mcp.make(over("stdio", "", include=("process", "add")), "honest")
    pid = int(call(made, "process").text)
    asyncio.run(made[0].close())
    assert call(made, "add", a=1, b=2).text == "3"
    close(made)
    close(made)
    assert gone(pid)
    with pytest.raises(ToolServerError) as failed:
        call(made, "add", a=1, b=2)
    assert failed.value.code == "mcp-server-closed"


@pytest.mark.slow
def test_closing_during_a_call_fails_the_call():
    made = mcp.make(over("stdio", "", include=("slow",)), "honest")

    async def run() -> None:
        task = asyncio.create_task(call_tool(made[0], {"seconds": 60}))
        await asyncio.sleep(0.2)
        await made[0].close()
        await task

    with pytest.raises(ToolServerError):
        asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_no_server_outlives_a_host_that_closes_nothing(ending):
    script = f"""
        import asyncio, os, signal, sys
        from midstream_mcp import tools as mcp
        made = mcp.make(mcp.McpConfig(command=tuple(sys.argv[1:]), include=("process",), prefix=""), "honest")
        print(asyncio.run(made[0].call({{}})).text, flush=True)
        {ending}
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script), *HONEST, "stdio"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert gone(int(done.stdout))


@pytest.mark.slow
def test_a_third_party_server_answers():
    made = mcp.make(
        mcp.McpConfig(command=(sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC")), "clock"
    )
    assert [tool.name for tool in made] == ["clock_get_current_time", "clock_convert_time"]
    found = call(made, "clock_convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo")
    assert found.ok
    assert "21:00" in found.text
    assert not call(made, "clock_get_current_time", timezone="Mars/Olympus").ok
    close(made)


@pytest.mark.slow
def test_a_recipe_names_a_server_and_gets_its_tools(make_build):
    server = [sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"]
    build = make_build(
        'tools.clock.type="mcp"', f"tools.clock.command={server}", 'tools.clock.exclude=["convert_time"]'
    )
    names = [tool.name for tool in build.tools]
    assert "clock_get_current_time" in names
    assert "clock_convert_time" not in names
    assert build.resolved["tools"]["clock"]["timeout_s"] == 60.0
    close([tool for tool in build.tools if isinstance(tool, mcp.McpTool)])


def test_tools_that_an_agent_cannot_call_are_refused_by_name():
    def tool(name, **schema):
        return types.Tool.model_validate({"name": name, "inputSchema": {"type": "object", **schema}})

    wide = {"properties": {f"p{n}": {"type": "string", "description": "x" * 100} for n in range(2000)}}
    tools = [tool("echo"), tool("…"), tool("x" * 300), tool("a.b"), tool("a-b"), tool("wide", **wide)]
    offered, refused = mcp.offer(tools, "far_")
    assert offered == {"far_echo": tools[0]}
    assert list(refused) == [tool.name for tool in tools[1:]]
