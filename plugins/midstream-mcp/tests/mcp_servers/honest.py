"""An MCP server written with the SDK, every kind of result once.

python honest.py stdio      over standard input and output
python honest.py http PORT  streamable HTTP on 127.0.0.1
"""

from __future__ import annotations

import asyncio
import os
import sys

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import BlobResourceContents, EmbeddedResource, ResourceLink, TextContent, TextResourceContents

server = MCPServer("honest", log_level="CRITICAL")


@server.tool()
def add(a: int, b: int) -> str:
    """Adds two whole numbers."""
    return str(a + b)


@server.tool()
def person(name: str) -> dict[str, str]:
    """Structured content."""
    return {"name": name, "born": "1815"}


@server.tool()
def many() -> list[TextContent | EmbeddedResource | ResourceLink]:
    """Text, a resource with text, one without, and a link."""
    return [
        TextContent(type="text", text="first"),
        EmbeddedResource(
            type="resource", resource=TextResourceContents(uri="file:///notes", mime_type="text/plain", text="a note")
        ),
        EmbeddedResource(
            type="resource", resource=BlobResourceContents(uri="file:///b", mime_type="application/zip", blob="QUJD")
        ),
        ResourceLink(type="resource_link", name="map", uri="https://example.org/map", size=2000),
        TextContent(type="text", text="last"),
    ]


@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=b"\x89PNG" * 500, format="png")


@server.tool()
def fails() -> str:
    """Raises."""
    raise RuntimeError("the flux is empty")


@server.tool()
async def slow(seconds: float) -> str:
    """Sleeps."""
    await asyncio.sleep(seconds)
    return "awake"


@server.tool()
def environment() -> str:
    """The names of its environment variables."""
    return " ".join(sorted(os.environ))


@server.tool()
def secret() -> str:
    """What it was handed."""
    return os.environ.get("MIDSTREAM_TEST_KEY", "nothing")


@server.tool()
def header(context: Context) -> str:
    """The request's Authorization header."""
    request = context.request_context.request
    return "none" if request is None else request.headers.get("authorization", "none")


@server.tool()
def long(characters: int) -> str:
    """So many characters."""
    return "x" * characters


@server.tool()
def process() -> str:
    """Its process id."""
    return str(os.getpid())


@server.tool()
def die() -> str:
    """Ends the process."""
    os._exit(3)


@server.tool(name="half.pair-name")
def half_pair() -> str:
    """A name that is no identifier."""
    return "here"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
