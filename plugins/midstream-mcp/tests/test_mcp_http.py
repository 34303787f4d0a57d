"""Failures of MCP over HTTP: an outcome for the one call that failed, and the session remains usable."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from mcp_servers.hostile_http import HostileHttp
from midstream.core.errors import ToolServerError
from midstream.core.tool import ToolResult
from midstream.core.tool_calls import call_tool
from midstream_mcp import session as mcp_session
from midstream_mcp import tools as mcp
from support.errors import coded
from support.peak_memory import growth_of_memory

# What a call gives: True for a result, False for `ok=False`, None for `ToolServerError`; and its text.
CALLS: dict[str, tuple[bool | None, str]] = {
    "honest": (True, "echo: hi"),
    "events": (True, "echo: hi"),
    "session_lost": (True, "echo: hi"),
    "session_lost_400": (True, "echo: hi"),
    "long_json": (False, "more than 1 MB is not read"),
    "long_event": (False, "more than 1 MB is not read"),
    "endless_json": (False, "more than 1 MB is not read"),
    "endless_line": (False, "more than 1 MB is not read"),
    "endless_headers": (None, "RemoteProtocolError: Receive buffer too long"),
    "hang": (False, "no result within 0.5 s"),
    "http_500": (None, "HTTP 500"),
    "accepted": (None, "202 Accepted"),
    "html": (None, "Unexpected content type: text/html"),
    "no_json": (None, "Failed to parse JSON response"),
    "redirect": (None, "not followed"),
    "gzip": (None, "a compressed body"),
    "bomb": (None, "a compressed body"),
    "cut_json": (None, "Failed to parse JSON response|RemoteProtocolError"),
    "cut_events": (None, "ended without a response|Failed to parse SSE message"),
    "reset": (None, "RemoteProtocolError|ReadError"),
}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_session, "PROBE_S", 2.0)
    monkeypatch.setattr(mcp_session, "PAUSE_S", 0.05)


def connect(server: HostileHttp, **settings: Any) -> mcp.McpTool:
    config = mcp.McpConfig(
        url=server.url, max_reply_mb=1, prefix="", **{"timeout_s": 20, "connect_timeout_s": 20, **settings}
    )
    [tool] = mcp.make(config, "remote")
    return tool


async def outcome(tool: mcp.McpTool) -> ToolResult | ToolServerError:
    try:
        return await call_tool(tool, {"text": "hi"})
    except ToolServerError as error:
        return error


@pytest.mark.matrix(2)
@pytest.mark.parametrize("mode", CALLS)
def test_every_call_has_an_outcome(mode):
    ok, text = CALLS[mode]
    with HostileHttp(mode) as server:
        tool = connect(server, timeout_s=0.5) if "within 0.5 s" in text else connect(server)

        async def run() -> list[ToolResult | ToolServerError]:
            found = list(await asyncio.gather(*(outcome(tool) for _ in range(3))))
            server.mode = "honest"
            found.append(await outcome(tool))
            await tool.close()
            return found

        *found, last = asyncio.run(run())
        for result in found:
            assert (result.ok if isinstance(result, ToolResult) else None) == ok, result
            assert re.search(text, result.text if isinstance(result, ToolResult) else str(result)), result
        assert isinstance(last, ToolResult)
        assert last.text == "echo: hi"
        assert server.sessions == (2 if mode.startswith("session_lost") else 1)
        assert server.ended >= 1


@pytest.mark.parametrize("method", ["initialize", "tools/list"])
def test_a_body_without_an_end_at_the_start_is_refused(method: str):
    refused = pytest.raises(ToolServerError, check=coded("mcp-server-unusable", "longer than max_reply_mb"))
    with HostileHttp(f"endless_at_{method}") as server, growth_of_memory() as growth, refused:
        connect(server)
    assert growth.mb < 64


def test_no_server_and_no_key_are_refused_at_the_start(monkeypatch):
    with pytest.raises(ToolServerError, check=coded("mcp-server-unusable", "'remote'", "ConnectError")):
        mcp.make(mcp.McpConfig(url="http://127.0.0.1:1/mcp"), "remote")
    monkeypatch.setenv("TRACKER_KEY", "s3cret-value")
    with (
        HostileHttp("http_401") as server,
        pytest.raises(ToolServerError, check=coded("mcp-server-unusable", "'remote'", "HTTP 401")) as caught,
    ):
        connect(server, headers_env={"Authorization": "TRACKER_KEY"})
    assert "key" in caught.value.cause
    assert "s3cret" not in str(caught.value)


def test_headers_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("TRACKER_KEY", "s3cret-value")
    monkeypatch.setenv("TEAM", "blue")
    with HostileHttp("honest") as server:
        tool = connect(server, headers_env={"Authorization": "TRACKER_KEY", "X-Team": "TEAM"})
        asyncio.run(tool.close())
        sent = [{name.lower(): value for name, value in headers.items()} for headers in server.headers]
    assert {(headers["authorization"], headers["x-team"]) for headers in sent} == {("Bearer s3cret-value", "blue")}
