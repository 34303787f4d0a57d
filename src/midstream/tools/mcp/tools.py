"""Any MCP server as a set of tools: a command that is started, or an address.

The list of tools is read once, when the tools are created; later changes are ignored. The server gets no access to our
model, user or files: requests for sampling, elicitation and roots are refused. See docs/tools.md.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlsplit

from pydantic import Field, JsonValue, field_validator, model_validator

from midstream.core.component import Context, ToolConfig
from midstream.core.data import unfit
from midstream.core.errors import RecipeError
from midstream.core.json_schema import unusable_schema
from midstream.core.protocols import ToolResult

if TYPE_CHECKING:
    from mcp_types import CallToolResult, Tool

    from midstream.tools.mcp.session import Server
    from midstream.tools.mcp.transports import Link

SHORTEST_KEY = 8  # characters: hiding a shorter value would hide half of every text
HIDDEN = "***"  # in place of a key that a server repeats
MAX_ERROR = 1000  # characters of a server's own text in an error
MAX_NAME = 64  # characters: what model servers allow for a function's name
MAX_DESCRIPTION = 1000  # of a tool; of a parameter half of it
MAX_SCHEMA = 20_000  # as JSON
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")  # and direction marks
warn = logging.getLogger("midstream.tools").warning
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class McpConfig(ToolConfig):
    """The tools of an MCP server: either `command` or `url`. The values of environment variables are sent to the server
    only.

    Attributes:
        command: program and arguments, such as `["mcp-server-time"]`
        cwd: its working directory; by default the current one
        env_pass: names of environment variables that it gets, with PATH, HOME, USER, LOGNAME, SHELL and TERM
        url: the server's address, without user name, password or query
        headers_env: headers and the variables with their values; a bare key for `Authorization` is sent as a bearer
            token
        include: tools to use, by the server's names; empty: all
        exclude: tools to leave out
        prefix: precedes each name, with `_` between; by default the table's name, and "" for none
        max_tools: a server with more is refused, because each takes space in every prompt
        connect_timeout_s: seconds to start, connect and list the tools
        timeout_s: seconds of one call
        output_tokens: the most tokens of a result; four characters count as a token
        max_reply_mb: a longer reply is not read; each list and object in it counts as 65 bytes
    """

    extra = "mcp"
    packages = ("mcp",)

    command: tuple[str, ...] = ()
    cwd: Path | None = None
    env_pass: tuple[str, ...] = ()
    url: str = ""
    headers_env: dict[str, str] = {}
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    prefix: str | None = None
    max_tools: int = Field(default=64, ge=1)
    connect_timeout_s: float = Field(default=30.0, gt=0)
    timeout_s: float = Field(default=60.0, gt=0)
    output_tokens: int = Field(default=4000, ge=1)
    max_reply_mb: float = Field(default=8.0, gt=0, le=256)

    @model_validator(mode="after")
    def _is_one_server(self) -> McpConfig:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either `command` or `url`")
        if self.url and (self.env_pass or self.cwd):
            raise ValueError("`env_pass` and `cwd` are for a `command`; a `url` takes `headers_env`")
        if self.command and self.headers_env:
            raise ValueError("`headers_env` is for a `url`; a `command` takes `env_pass`")
        return self

    @field_validator("env_pass", "headers_env")
    @classmethod
    def _are_names(cls, value: Any) -> Any:
        names = value.values() if isinstance(value, dict) else value
        if not all(_VARIABLE.fullmatch(name) for name in names):
            raise RecipeError(  # a ValueError would show the value, which may be a key
                "env_pass or headers_env holds a value that is not the name of an environment variable",
                code="secret-in-recipe",
                cause="it may be the key itself, which would be written into run directories",
                fix='export SERVICE_KEY=<your key>, and env_pass = ["SERVICE_KEY"]',
            )
        return value

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if any(mark in value for mark in "@?#"):
            raise RecipeError(  # a ValueError would show the address
                "url holds a user name, a password, a query or a fragment",
                code="secret-in-recipe",
                cause="the address is written into run directories",
                fix='url = "https://host/mcp", and the key in a variable that headers_env names',
            )
        parts = urlsplit(value)
        if value and (parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"[^!-~]", value)):
            raise ValueError("not an address such as http://127.0.0.1:8000/mcp")
        return value

    def check_machine(self, where: str) -> None:
        """Check the SDK, and that the command exists; the server is not started."""
        super().check_machine(where)
        for program in self.command[:1]:
            if shutil.which(self.cwd / program if self.cwd and os.sep in program else program) is None:
                raise RecipeError(
                    f"{where}.command: there is no program {program!r}",
                    code="command-not-found",
                    fix="install it, or give the program's absolute path as the first word of `command`",
                )

    def build(self, context: Context) -> list[McpTool]:
        """Connect to the server and return its tools."""
        return make(self, context.name)


def make(config: McpConfig, name: str) -> list[McpTool]:
    """The tools of the server that the table `[tools.NAME]` describes, connected.

    Raises:
        RecipeError: an environment variable is not set, the command cannot be started, a tool of `include` is missing
            or unusable, or there are too many tools.
        ToolServerError: the server does not come up or does not speak the protocol.
        UnsupportedError: the MCP SDK is not installed.
    """
    config.check_machine(f"tools.{name}")
    from midstream.tools.mcp.session import Server  # needs the SDK

    passed = (*config.env_pass, *config.headers_env.values())
    for variable in passed:
        if not os.environ.get(variable, "").strip():
            raise RecipeError(
                f"${variable} is not set",
                code="missing-key",
                fix=f"export {variable}=<its value>, or remove it from [tools.{name}]",
            )
    secrets = {variable: os.environ[variable].strip() for variable in passed}
    for variable in config.headers_env.values():
        if not (secrets[variable].isascii() and secrets[variable].isprintable()):
            raise RecipeError(
                f"${variable} holds a character that no HTTP header can carry",
                code="key-invalid",
                fix=f"export {variable}=<its value>",
            )
    hide = hider(secrets.values())

    def cleaned(text: str) -> str:
        return clean(hide(text), MAX_ERROR)

    server = Server(name, config, lambda: _link(config, secrets, hide), cleaned)
    listed = server.start()
    prefix = name if config.prefix is None else config.prefix
    prefix += "_" * prefix[-1:].isalnum()
    wanted = [
        tool for tool in listed if tool.name in (config.include or [tool.name]) and tool.name not in config.exclude
    ]
    offered, refused = offer(wanted[: config.max_tools], prefix)
    try:
        _check(config, name, listed, wanted, refused)
    except RecipeError:
        server.stop()
        raise
    for tool, why in refused.items():
        warn("MCP server %s: its tool %r is left out: %s", name, cleaned(tool)[:80], cleaned(why))
    users = set(offered)
    return [McpTool(name, tool, server, config.output_tokens, users) for name, tool in offered.items()]


def hider(secrets: Iterable[str]) -> Callable[[str], str]:
    """Return a function that replaces each secret in a text, also as JSON and URLs write it, by `***`.

    Secrets of fewer than `SHORTEST_KEY` characters stay.
    """
    words = {word for secret in secrets for word in (secret, secret.rpartition(" ")[2])}  # without "Bearer"
    forms = {
        form
        for word in words
        if len(word) >= SHORTEST_KEY
        for form in (word, json.dumps(word)[1:-1], json.dumps(word, ensure_ascii=False)[1:-1], quote(word, safe=""))
    }
    if not forms:
        return str
    # Longest first: a secret may begin with another. Servers write %2F or %2f.
    pattern = re.compile("|".join(map(re.escape, sorted(forms, key=len, reverse=True))), re.IGNORECASE)
    return lambda text: pattern.sub(HIDDEN, text)


def _link(config: McpConfig, secrets: Mapping[str, str], hide: Callable[[str], str]) -> Link:
    from mcp.client.stdio import get_default_environment

    from midstream.tools.mcp.transports import HttpLink, StdioLink

    if config.command:
        return StdioLink(config, {**get_default_environment(), **secrets}, hide)
    headers = {}
    for header, variable in config.headers_env.items():
        # A bare key for `Authorization` gets the scheme that precedes it.
        bare = header.lower() == "authorization" and " " not in secrets[variable]
        headers[header] = f"Bearer {secrets[variable]}" if bare else secrets[variable]
    return HttpLink(config, headers, hide)


def _check(
    config: McpConfig, name: str, listed: Sequence[Tool], wanted: Sequence[Tool], refused: Mapping[str, str]
) -> None:
    """Refuse settings that select no tool, too many, or one that is missing or unusable."""
    names = ", ".join(clean(tool.name, 40) for tool in listed[:50])
    for included in config.include:
        if included in refused or included not in [tool.name for tool in listed]:
            raise RecipeError(
                f"tools.{name}.include names {included!r}: {refused.get(included, 'the server has no such tool')}",
                code="mcp-tools-invalid",
                fix=f"name some of the server's tools: {names or 'it has none'}",
            )
    if len(wanted) > config.max_tools:
        raise RecipeError(
            f"tools.{name} offers {len(wanted)} tools, more than max_tools = {config.max_tools}",
            code="mcp-tools-invalid",
            fix=f"choose some with tools.{name}.include = [...]: {names}",
        )
    if all(tool.name in refused for tool in wanted):
        raise RecipeError(
            f"tools.{name} offers no usable tool",
            code="mcp-tools-invalid",
            cause="; ".join(refused.values())[:500] or "the server lists none, or `include` and `exclude` leave none",
            fix=f"the server's tools are {names or 'none'}: correct `include` or `exclude`, or the server",
        )


class Refused(Exception):
    """The server refused a call for a reason that the caller can fix; the text gives it."""


class McpTool:
    """One tool of an MCP server. Closing the last of them, named in `users`, closes the server."""

    def __init__(self, name: str, tool: Tool, server: Server, output_tokens: int, users: set[str]) -> None:
        self.name, self.description = name, clean(tool.description or tool.title or tool.name, MAX_DESCRIPTION)
        self.parameters: Mapping[str, Any] = _with_clean_texts(tool.input_schema)
        self.timeout_s, self.output_tokens = server.longest_call_s, output_tokens
        self._original, self._server, self._users = tool.name, server, users

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """The server's result as text.

        `ok=False` if the result is an error, the server refuses the arguments, or the call took longer than the
        recipe's `timeout_s` while the server answers other requests. Raises `ToolServerError` if the server is gone,
        hangs, or answers with something that is not a result.
        """
        try:
            result = await self._server.call(self._original, arguments)
        except Refused as refusal:
            return ToolResult(text=f"{self.name}: {refusal}", ok=False)
        return ToolResult(text=text_of(result), ok=not result.is_error)

    async def close(self) -> None:
        """Close this tool; the last one ends the server."""
        self._users.discard(self.name)
        if not self._users:
            await asyncio.to_thread(self._server.stop)


def text_of(result: CallToolResult) -> str:
    """A result as text: its texts, other content by kind and size, or else its structured content as JSON."""
    parts: list[str] = []
    blocks = cast(list[Any], result.content)
    for block in blocks:
        if block.type == "text":
            parts.append(block.text)
        elif block.type in ("image", "audio"):
            parts.append(f"[{block.type}: {block.mime_type}, {_size(len(block.data) * 3 // 4)}]")
        elif block.type == "resource_link":
            size = "" if block.size is None else f", {_size(block.size)}"
            parts.append(f"[resource: {block.uri}, {block.mime_type or 'unknown type'}{size}]")
        else:
            content = block.resource
            named = f"resource: {content.uri}, {content.mime_type or 'unknown type'}"
            if hasattr(content, "text"):
                parts.append(f"[{named}]\n{content.text}")
            else:
                parts.append(f"[{named}, {_size(len(content.blob) * 3 // 4)}]")
    if not any(block.type == "text" for block in blocks) and result.structured_content is not None:
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    silent = "the tool failed without a message" if result.is_error else "(no output)"
    return "\n".join(part for part in parts if part) or silent


def _size(count: int) -> str:
    return f"{count} bytes" if count < 1000 else f"{count / 1000:.0f} kB"


# --- what a server offers: written by others, and made to fit into prompts ------------------------------------------


def offer(wanted: Sequence[Tool], prefix: str) -> tuple[dict[str, Tool], dict[str, str]]:
    """({name for the agent: usable tool} in the server's order, {name on the server: reason} of the others)."""
    names = Counter(identifier(prefix + tool.name) for tool in wanted)
    offered: dict[str, Tool] = {}
    refused: dict[str, str] = {}
    for tool in wanted:
        name = identifier(prefix + tool.name)
        if not re.search(r"[A-Za-z0-9]", tool.name):
            reason = "its name has no letter and no digit"
        elif HIDDEN in tool.name:
            reason = "its name holds a key that the server was given"
        elif len(name) > MAX_NAME:
            reason = f"its name is longer than {MAX_NAME} characters"
        elif names[name] > 1:
            reason = "another has the same name"
        else:
            reason = bad_schema(tool.input_schema)
        if reason:
            refused[tool.name] = reason
        else:
            offered[name] = tool
    return offered, refused


def identifier(name: str) -> str:
    """`name` with every character that an identifier cannot hold replaced by "_"."""
    word = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"_{word}" if word[:1].isdigit() else word


def clean(text: str, limit: int) -> str:
    """`text` on one line, without control characters, at most `limit` characters and an ellipsis."""
    line = " ".join(_CONTROL.sub(" ", text[: 10 * limit]).split())
    return line if len(line) <= limit else line[:limit] + " ..."


def bad_schema(schema: dict[str, Any]) -> str | None:
    """The reason why a schema cannot be used for a tool's arguments, or None."""
    if why := unfit(schema):
        return f"its schema: {why}"
    if len(json.dumps(schema)) > MAX_SCHEMA:
        return f"its schema is longer than {MAX_SCHEMA} characters"
    if schema.get("type") != "object":
        return f"its schema is of type {schema.get('type')!r}, not object"
    why = unusable_schema(schema)
    return f"its schema is not a JSON schema that is complete in itself: {why}" if why else None


def _with_clean_texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_clean_texts(item) for item in value]
    if not isinstance(value, dict):
        return value
    texts = ("description", "title", "$comment")
    return {
        key: clean(item, MAX_DESCRIPTION // 2) if key in texts and isinstance(item, str) else _with_clean_texts(item)
        for key, item in value.items()
    }
