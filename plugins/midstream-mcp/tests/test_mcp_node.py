"""MCP's reference server and its conformance suite, both from npm: `make test-node` installs and runs them.

MIDSTREAM_NODE is the folder that holds their `node_modules`. Without it these tests are skipped.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.core.tool import ToolResult
from midstream.core.tool_calls import call_tool
from midstream_mcp import tools as mcp
from midstream_worlds.scripted_engine import ScriptedEngine

ROOT = os.environ.get("MIDSTREAM_NODE", "")
MODULES = Path(ROOT) / "node_modules"
NODE = str(MODULES / ".bin" / "node")
EVERYTHING = str(MODULES / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js")
CONFORMANCE = str(MODULES / ".bin" / "conformance")
CLIENT = Path(__file__).parent / "mcp_conformance_client.py"

pytestmark = pytest.mark.skipif(not ROOT, reason="run `make test-node`, which needs Node.js and npm")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    command = [NODE, EVERYTHING, "streamableHttp"]
    environment = {**os.environ, "PORT": str(port)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        for _ in range(200):
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        try:
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_reference_servers_tools(transport, url):
    peer = {"url": url} if transport == "http" else {"command": (NODE, EVERYTHING, "stdio")}
    tools = {tool.name: tool for tool in mcp.make(mcp.McpConfig(**peer, timeout_s=20, prefix=""), "everything")}

    async def run() -> dict[str, ToolResult]:
        calls = {
            "echo": {"message": "hi"},
            "get_sum": {"a": 2, "b": 5},
            "get_tiny_image": {},
            "get_structured_content": {"location": "Chicago"},
            "get_resource_links": {"count": 2},
            "get_resource_reference": {},
            "trigger_long_running_operation": {"duration": 1, "steps": 5},
        }
        found = {name: await call_tool(tools[name], arguments) for name, arguments in calls.items()}
        found["wrong"] = await call_tool(tools["get_sum"], {"a": "two"})
        for tool in tools.values():
            await tool.close()
        return found

    found = asyncio.run(run())
    assert [name for name, result in found.items() if not result.ok] == ["wrong"]
    assert found["echo"].text == "Echo: hi"
    assert found["get_sum"].text == "The sum of 2 and 5 is 7."
    assert "[image: image/png, " in found["get_tiny_image"].text
    assert '"temperature":36' in found["get_structured_content"].text
    assert found["get_resource_links"].text.count("[resource: demo://") == 2
    assert "This is a plaintext resource" in found["get_resource_reference"].text
    assert "expected number, received string" in found["wrong"].text


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_reference_server_asks_for_a_model_and_for_roots(transport, url, tmp_path):
    peer = {"url": url} if transport == "http" else {"command": (NODE, EVERYTHING, "stdio")}
    include = ("trigger-sampling-request", "get-roots-list")
    engine = ScriptedEngine(lambda request: f"re: {request.messages[-1].content}")
    config = mcp.McpConfig(**peer, timeout_s=20, prefix="", include=include, roots=(tmp_path,))
    tools = {tool.name: tool for tool in mcp.make(config, "everything", engine)}

    async def run() -> tuple[ToolResult, ToolResult]:
        found = await call_tool(tools["trigger_sampling_request"], {"prompt": "hi", "maxTokens": 7})
        roots = await call_tool(tools["get_roots_list"], {})
        for tool in tools.values():
            await tool.close()
        return found, roots

    found, roots = asyncio.run(run())
    assert '"text": "re: Resource trigger-sampling-request context: hi"' in found.text
    assert [call.role for call in found.calls] == ["everything.trigger-sampling-request"]
    [request] = engine.requests
    assert (request.messages[0].content, request.sampling.max_tokens) == ("You are a helpful test server.", 7)
    assert tmp_path.as_uri() in roots.text


@pytest.mark.parametrize(
    ("scenario", "checks"),
    [
        ("initialize", {"mcp-client-initialization"}),
        ("tools_call", {"tool-add-numbers"}),
        ("sse-retry", {"client-sse-graceful-reconnect", "client-sse-retry-timing", "client-sse-last-event-id"}),
    ],
)
def test_conformance(scenario, checks):
    command = [NODE, CONFORMANCE, "client", "--scenario", scenario, "--command", f"{sys.executable} {CLIENT}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    printed = re.sub(r"\x1b\[\d+m", "", done.stdout + done.stderr)
    found = dict(re.findall(r"\[(\S+) *\] (SUCCESS|WARNING|FAILURE)", printed))
    # A client must not reconnect early; on a busy machine it may be late.
    if re.search(r"Client reconnected (slightly|very) late", printed):
        found["client-sse-retry-timing"] = "SUCCESS"
    assert found == dict.fromkeys(checks, "SUCCESS"), printed
