"""The model of an MCP client as an engine: an agent that `midstream mcp` serves asks its client's own model.

[engines.model]
type = "mcp_client"
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from midstream.components.component import Context, EngineConfig
from midstream.core.engine import Engine, Request
from midstream.core.errors import EngineError
from midstream.core.trajectory import Call

client_session: ContextVar[Any] = ContextVar("client_session", default=None)  # of the request that is answered


class McpClientConfig(EngineConfig):
    """The client's model; the client decides which one, and may ask its user first.

    A request goes back over the connection, so the client must have connected with the `initialize` handshake.
    """

    def build(self, context: Context) -> McpClientEngine:
        """The engine."""
        return McpClientEngine(context.name)


class McpClientEngine(Engine):
    """Sends each request back to the client whose question is answered (`sampling/createMessage`)."""

    token_exact = False

    def __init__(self, name: str) -> None:
        self.name = name

    async def sample(self, request: Request) -> Call:
        """Ask the client. Raises `EngineError` outside of `midstream mcp`, and where the client refuses."""
        session = client_session.get()
        if session is None:
            raise EngineError(
                f"{self.name} is the model of an MCP client, and no client asks",
                code="mcp-client-missing",
                fix="use it with midstream mcp RECIPE, and another engine elsewhere",
                retryable=False,
            )
        import mcp_types as types
        from mcp import MCPError

        system = "\n\n".join(message.content for message in request.messages if message.role == "system")
        said = [message for message in request.messages if message.role != "system"]
        try:
            reply = await session.create_message(
                [
                    types.SamplingMessage(
                        role="assistant" if message.role == "assistant" else "user",
                        content=types.TextContent(type="text", text=message.content),
                    )
                    for message in said
                ],
                max_tokens=request.sampling.max_tokens,
                system_prompt=system or None,
                temperature=request.sampling.temperature,
                stop_sequences=list(request.sampling.stop) or None,
            )
        except MCPError as failure:
            raise EngineError(
                f"{self.name}: the MCP client did not sample: {failure}",
                code="endpoint-failed",
                fix="use a client with sampling and the initialize handshake, or another engine",
                retryable=False,
            ) from failure
        content = reply.content[0] if isinstance(reply.content, list) else reply.content
        return request.answered(
            self.name, getattr(content, "text", ""), finish_reason=reply.stop_reason or "", sent={"model": reply.model}
        )
