"""Any MCP server as a set of tools: a command that is started, or an address.

The list of tools is read once, when the tools are created; later changes are ignored. The server gets a model only by
`engine`, and only the roots that `roots` names; requests for elicitation are refused. See README.md.
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from pydantic import Field, JsonValue, field_validator, model_validator

from midstream.components.component import Context, ToolConfig
from midstream.core.data import unfit
from midstream.core.engine import Engine
from midstream.core.errors import RecipeError
from midstream.core.json_schema import unusable_schema
from midstream.core.tool import ToolResult
from midstream.core.trajectory import Call

if TYPE_CHECKING:
    from mcp_types import Tool

    from midstream_mcp.sampling import Sessions
    from midstream_mcp.session import Server

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
        max_reply_mb: a longer reply of a `url` is not read
        roots: directories and files whose addresses the server gets when it asks for its roots
        max_tokens: the most new tokens of each reply of `engine` to the server
    """

    asks = "optional"
    several = True

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
    roots: tuple[Path, ...] = ()
    max_tokens: int = Field(default=2048, ge=1)

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
    def _are_names(cls, value: tuple[str, ...] | dict[str, str]) -> tuple[str, ...] | dict[str, str]:
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
        """Check that the command and the roots exist; the server is not started."""
        for program in self.command[:1]:
            if shutil.which(self.cwd / program if self.cwd and os.sep in program else program) is None:
                raise RecipeError(
                    f"{where}.command: there is no program {program!r}",
                    code="command-not-found",
                    fix="install it, or give the program's absolute path as the first word of `command`",
                )

        for path in self.roots:
            if not path.exists():
                raise RecipeError(
                    f"{where}.roots: there is no {str(path)!r}",
                    code="file-not-found",
                    fix="create it, or correct the path, which is relative to the recipe's file",
                )

    def build(self, context: Context) -> list[McpTool]:
        """Connect to the server and return its tools."""
        return make(self, context.name, context.engine)


def make(config: McpConfig, name: str, engine: Engine | None = None) -> list[McpTool]:
    """The tools of the server that the table `[tools.NAME]` describes, connected; `engine` answers what it asks.

    Raises:
        RecipeError: an environment variable is not set, the command cannot be started, a root does not exist, a tool of
            `include` is missing or unusable, or there are too many tools.
        ToolServerError: the server does not come up or does not speak the protocol.
    """
    config.check_machine(f"tools.{name}")
    from midstream_mcp.sampling import Sessions  # which import the SDK: half a second
    from midstream_mcp.session import Server

    secrets = _secrets(config, name)
    new = partial(Server, name, config, secrets, samples=engine is not None)
    server = new()
    listed = [_with_clean_texts(tool, server.hide) for tool in server.start()]
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
        warn("MCP server %s: its tool %r is left out: %s", name, clean(tool, 80), clean(why, MAX_ERROR))
    users = set(offered)
    calling = server if engine is None else Sessions(name, server, new, engine, config.max_tokens)
    return [McpTool(name, tool, calling, config.output_tokens, users) for name, tool in offered.items()]


def _secrets(config: McpConfig, name: str) -> dict[str, str]:
    """The environment variables that the server gets; raises `RecipeError` for one that is unset or unfit."""
    secrets: dict[str, str] = {}
    for variable in (*config.env_pass, *config.headers_env.values()):
        secrets[variable] = value = os.environ.get(variable, "").strip()
        if not value:
            raise RecipeError(
                f"${variable} is not set",
                code="missing-key",
                fix=f"export {variable}=<its value>, or remove it from [tools.{name}]",
            )
        if config.url and not (value.isascii() and value.isprintable()):
            raise RecipeError(
                f"${variable} holds a character that no HTTP header can carry",
                code="key-invalid",
                fix=f"export {variable}=<its value>",
            )
    return secrets


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


def _check(
    config: McpConfig, name: str, listed: Sequence[Tool], wanted: Sequence[Tool], refused: Mapping[str, str]
) -> None:
    """Refuse settings that select no tool, too many, or one that is missing or unusable."""
    unknown = set(config.include) - {tool.name for tool in listed}
    problem = cause = ""
    if unknown:
        problem = f"include names {sorted(unknown)}, which the server does not have"
    elif unusable := sorted(set(config.include) & set(refused)):
        problem, cause = f"include names {unusable}, which cannot be used", refused[unusable[0]]
    elif len(wanted) > config.max_tools:
        problem = f"{len(wanted)} tools are more than max_tools = {config.max_tools}"
    elif all(tool.name in refused for tool in wanted):
        problem, cause = "no usable tool is left", "; ".join(refused.values())[:500]
    if problem:
        names = ", ".join(clean(tool.name, 40) for tool in listed[:50])
        raise RecipeError(
            f"tools.{name}: {problem}",
            code="mcp-tools-invalid",
            cause=cause,
            fix=f"choose with tools.{name}.include = [...] from the server's tools: {names or 'it has none'}",
        )


class Refused(Exception):
    """The server refused a call for a reason that the caller can fix; the text gives it.

    `calls` are the requests that the server made to a model before.
    """

    calls: tuple[Call, ...] = ()


class McpTool:
    """One tool of an MCP server. Closing the last of them, named in `users`, closes the server."""

    def __init__(self, name: str, tool: Tool, server: Server | Sessions, output_tokens: int, users: set[str]) -> None:
        self.name, self.description = name, tool.description or tool.name
        self.parameters: Mapping[str, Any] = tool.input_schema
        self.timeout_s, self.output_tokens = server.longest_call_s, output_tokens
        self._original, self._server, self._users = tool.name, server, users

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        """The server's result as text.

        `ok=False` if the result is an error, the server refuses the arguments, or the call took longer than the
        recipe's `timeout_s` while the server answers other requests. Raises `ToolServerError` if the server is gone,
        hangs, or answers with something that is not a result, or if the engine that it asks fails.
        """
        try:
            return await self._server.call(self._original, arguments)
        except Refused as refusal:
            return ToolResult(text=f"{self.name}: {refusal}", ok=False, calls=refusal.calls)

    async def close(self) -> None:
        """Close this tool; the last one ends the server."""
        self._users.discard(self.name)
        if not self._users:
            await asyncio.to_thread(self._server.stop)


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


def _with_clean_texts(tool: Tool, hide: Callable[[str], str]) -> Tool:
    """A tool without keys, and without control characters and great length in what prompts show."""

    def cleaned(value: Any) -> Any:
        if isinstance(value, str):
            return hide(value)
        if isinstance(value, list):
            return [cleaned(item) for item in value]
        if not isinstance(value, dict):
            return value
        schema = {hide(key): cleaned(item) for key, item in value.items()}
        for key in ("description", "title", "$comment"):
            if isinstance(schema.get(key), str):
                schema[key] = clean(schema[key], MAX_DESCRIPTION // 2)
        return schema

    description = clean(hide(tool.description or tool.title or tool.name), MAX_DESCRIPTION)
    return tool.model_copy(
        update={"name": hide(tool.name), "description": description, "input_schema": cleaned(tool.input_schema)}
    )
