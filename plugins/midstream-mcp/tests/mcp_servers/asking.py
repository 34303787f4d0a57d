"""An MCP server written with the SDK that asks its client for a model and for roots.

python asking.py stdio      over standard input and output
python asking.py http PORT  streamable HTTP on 127.0.0.1
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from typing import Any

from mcp import MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ImageContent, ModelPreferences, SamplingMessage, TextContent, Tool

warnings.simplefilter("ignore")  # the SDK's: sampling and roots are deprecated in 2026-07-28
server = MCPServer("asking", log_level="CRITICAL")
tasks = set[asyncio.Task[Any]]()


def user(text: str) -> SamplingMessage:
    return SamplingMessage(role="user", content=TextContent(type="text", text=text))


async def sampled(context: Context, messages: list[SamplingMessage], **parameters: Any) -> str:
    """The reply of the client's model, or the error."""
    parameters = {"max_tokens": 9, "related_request_id": context.request_id, **parameters}
    try:
        reply = await context.session.create_message(messages, **parameters)
    except MCPError as error:
        return f"error {error.code}: {error.message}"
    return f"{reply.content.text} ({reply.model}, {reply.stop_reason})"  # type: ignore[union-attr]


@server.tool()
async def ask(question: str, context: Context, times: int = 1) -> str:
    """Asks the model, one time after another."""
    return "; ".join([await sampled(context, [user(question)]) for _ in range(times)])


@server.tool()
async def ask_at_once(question: str, times: int, context: Context) -> str:
    """Asks the model several questions at once."""
    return "; ".join(await asyncio.gather(*(sampled(context, [user(f"{question} {n}")]) for n in range(times))))


@server.tool()
async def ask_in_full(context: Context) -> str:
    """Asks with everything that a request may have."""
    return await sampled(
        context,
        [user("one"), SamplingMessage(role="assistant", content=TextContent(type="text", text="two")), user("three")],
        max_tokens=100_000,
        system_prompt="Count.",
        temperature=0.5,
        stop_sequences=["four"],
        include_context="none",
        model_preferences=ModelPreferences(cost_priority=1.0),
    )


@server.tool()
async def ask_oddly(context: Context) -> list[str]:
    """Asks for what no client of ours gives."""
    image = SamplingMessage(role="user", content=ImageContent(type="image", data="QUJD", mime_type="image/png"))
    tool = Tool(name="add", input_schema={"type": "object"})
    return [
        await sampled(context, [user("look"), image]),
        await sampled(context, [user("look")], include_context="thisServer"),
        await sampled(context, [user("look")], max_tokens=0),
        await sampled(context, []),
        await sampled(context, [user("look")], tools=[tool]),
    ]


@server.tool()
async def ask_and_leave(context: Context) -> str:
    """Answers before the model does."""
    tasks.add(asyncio.create_task(sampled(context, [user("slow")])))
    await asyncio.sleep(0.1)
    return "left"


@server.tool()
async def ask_and_raise(context: Context) -> str:
    """Leaves the client's refusal as it is."""
    await context.session.create_message([user("hello")], max_tokens=9, related_request_id=context.request_id)
    return "answered"


@server.tool()
async def roots(context: Context) -> list[str]:
    """The client's roots."""
    return [f"{root.name} {root.uri}" for root in (await context.session.list_roots()).roots]


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
