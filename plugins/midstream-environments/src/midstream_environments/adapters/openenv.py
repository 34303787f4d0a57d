"""OpenEnv: environments behind a server, one session of it for each episode.

The server is at an address, or this process starts it and watches it; it ends with this process, by its supervisor.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import IO, Any

from openenv.core import GenericEnvClient
from websockets.exceptions import ConnectionClosed

# The library was renamed after 0.3.
DISTRIBUTION = "openenv-core"
try:
    version("openenv")
    DISTRIBUTION = "openenv"
except PackageNotFoundError:
    pass

# Of ten seeds.
SPLITS = ("train",) * 8 + ("validation", "test")
# How often a server that starts is asked whether it is there.
POLL_S = 0.1
# For a server to end after it closed a connection.
END_S = 1.0
# Of a server's output, for its error.
KEPT_LINES = 20
# What answers a request without an HTTP status.
UNREACHABLE = (OSError, ValueError)
# An action that calls a tool has these fields, and no others.
TOOL_FIELDS = {"type", "tool_name", "arguments"}
# midstream limits the time of a call.
NO_LIMIT_S = 1e9
# Errors of a call that are the environment's, not those of what the agent asked for.
BROKEN = ("transport_error", "timeout")
SHAPE = """Each of your replies is one action: a JSON object that fits this schema, and nothing else.
{schema}"""


class Adapter:
    """The environment of one recipe."""

    def __init__(
        self,
        url: str,
        command: list[str],
        arguments: dict[str, Any],
        observation: list[str],
        reward: str,
        episodes: int,
        max_turns: int,
        unfinished: float | None,
    ) -> None:
        self._arguments, self._shown, self._reward = arguments, observation, reward
        self._episodes, self._max_turns, self._unfinished = episodes, max_turns, unfinished
        self._open: dict[str, Session] = {}
        self._starting = asyncio.Lock()
        self._server = Server(command, url)
        self._server.start()
        schema = self._server.get("/schema")["action"]
        self._fields = fields_of(schema)
        self._tools = set(self._fields) <= TOOL_FIELDS
        self._field = text_field(self._fields, schema.get("required", []))
        self._system = "" if self._tools or self._field else SHAPE.format(schema=json.dumps(shape_of(schema)))

    def rows(self) -> list[dict[str, Any]]:
        """A row for each seed."""
        return [
            {
                "case": str(seed),
                "question": f"{self._server.name}, seed {seed}",
                "split": SPLITS[seed % 10],
                "family": self._server.name,
            }
            for seed in range(self._episodes)
        ]

    async def open(self, episode: str, case: str) -> dict[str, Any]:
        """Begin a session and reset it, or say that there is no room for another one."""
        async with self._starting:
            if self._server.ended:
                await asyncio.to_thread(self._server.start)
        client = GenericEnvClient(base_url=self._server.url, message_timeout_s=NO_LIMIT_S, mode="simulation")
        try:
            try:
                await client.connect()
                result = await self._answer(client, client.reset(seed=int(case), **self._arguments))
                tools = await self._offered(client) if self._tools else []
            except NoRoomError:
                await closed(client)
                return {"full": True}
        except BaseException:
            await closed(client)
            raise
        self._open[episode] = Session(client, result)
        return {"system": self._system, "tools": tools, **self._turn(episode, self._text(result.observation))}

    async def reply(self, episode: str, text: str) -> dict[str, Any]:
        """Take a step. Where the actions are tools, a reply without a call ends the episode."""
        session = self._open[episode]
        session.turns += 1
        if self._tools:
            session.left = True
            return self._turn(episode, "")
        try:
            action = {self._field: text} if self._field else action_in(text)
            result = await self._answer(session.client, session.client.step(action))
        except NoActionError as error:
            return self._turn(episode, f"That is no action: {error}")
        session.take(result)
        return self._turn(episode, self._text(result.observation))

    async def call(self, episode: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool, which is a step too."""
        session = self._open[episode]
        if session.over or session.turns >= self._max_turns:
            return {"text": "the episode is over", "ok": False}
        session.turns += 1
        action = {"type": "call_tool", "tool_name": tool, "arguments": arguments}
        try:
            result = await self._answer(session.client, session.client.step(action))
        except NoActionError as error:
            return {"text": str(error), "ok": False}
        session.take(result)
        return {**result_of_tool(result.observation), "outcome": self._outcome(session)}

    async def close(self, episode: str) -> None:
        """End the session."""
        if session := self._open.pop(episode, None):
            await closed(session.client)

    async def _offered(self, client: GenericEnvClient) -> list[dict[str, Any]]:
        """The environment's tools."""
        result = await self._answer(client, client.step({"type": "list_tools"}))
        return [
            {
                "name": tool["name"],
                "description": tool.get("description") or "",
                "parameters": tool.get("input_schema") or tool.get("inputSchema") or {},
            }
            for tool in result.observation.get("tools", [])
        ]

    async def _answer(self, client: GenericEnvClient, asked: Awaitable[Any]) -> Any:
        """A reply of the server. Raises `NoRoomError`, `NoActionError`, or what says why."""
        try:
            return await asked
        except RuntimeError as error:
            text = str(error)
        except ConnectionClosed as error:
            text = await last_words(client) or await asyncio.to_thread(self._server.explained, str(error))
        if "CAPACITY_REACHED" in text:
            raise NoRoomError
        if "VALIDATION_ERROR" in text:
            raise NoActionError("it does not fit the schema of the environment's actions")
        raise RuntimeError(text)

    def _text(self, observation: dict[str, Any]) -> str:
        """What the agent reads: the one text in an observation, or all of it as JSON."""
        fields = {name: value for name, value in observation.items() if name not in ("reward", "done", "metadata")}
        if self._shown:
            if missing := set(self._shown) - set(fields):
                raise ValueError(
                    f"tasks.observation: the environment's has no {min(missing)!r}, but {', '.join(fields)}"
                )
            fields = {name: fields[name] for name in self._shown}
        said = {name: value for name, value in fields.items() if value not in (None, "", [], {})}
        if len(said) == 1 and isinstance(text := next(iter(said.values())), str):
            return text
        return json.dumps(said, ensure_ascii=False) if said else "(no message)"

    def _turn(self, episode: str, text: str) -> dict[str, Any]:
        session = self._open[episode]
        over = session.over or session.left or session.turns >= self._max_turns
        return {"text": text, "over": over, "outcome": self._outcome(session)}

    def _outcome(self, session: Session) -> dict[str, Any]:
        reward, feedback = session.total if self._reward == "sum" else session.last, ""
        if not session.over:
            reward, feedback = reward if self._unfinished is None else self._unfinished, "the episode was not finished"
        return {"reward": reward, "feedback": feedback, "turns": session.turns}


class Session:
    """An episode under way: its connection, and its rewards so far. A step without a reward adds 0.

    It is `over` when the environment says so, and `left` by an agent that makes no more calls.
    """

    def __init__(self, client: GenericEnvClient, first: Any) -> None:
        self.client, self.turns, self.total, self.last = client, 0, 0.0, 0.0
        self.over = self.left = False
        self.take(first)

    def take(self, result: Any) -> None:
        """Count a result of the environment."""
        self.over = bool(result.done)
        if result.reward is not None:
            self.last = float(result.reward)
            self.total += self.last


class Server:
    """The environment's server: one that runs already, or one of this process, on a free port."""

    def __init__(self, command: list[str], url: str) -> None:
        self._command, self.url = command, url.rstrip("/")
        self._process: subprocess.Popen[bytes] | None = None
        self._printed: deque[str] = deque(maxlen=KEPT_LINES)
        self.name = "openenv"

    @property
    def ended(self) -> bool:
        """Whether the server was started here, and is no more."""
        return self._process is not None and self._process.poll() is not None

    def start(self) -> None:
        """Start it if it has a command, and wait until it answers. Raises `RuntimeError` if it ends before."""
        if self._command:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            self.url, self._printed = f"http://127.0.0.1:{port}", deque(maxlen=KEPT_LINES)
            path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
            self._process = subprocess.Popen(
                [word.replace("{port}", str(port)) for word in self._command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PATH": path},
            )
            self._reader = threading.Thread(target=self._keep, args=(self._process.stdout,), daemon=True)
            self._reader.start()
        while True:
            try:
                self.get("/health")
                break
            except UNREACHABLE as error:
                if not self._command:
                    raise RuntimeError(f"no OpenEnv server answers at {self.url}: {error}") from error
            if self.ended:
                raise RuntimeError(self.explained(""))
            time.sleep(POLL_S)
        # Not every server has them.
        with suppress(*UNREACHABLE):
            self.name = str(self.get("/metadata").get("name") or self.name)

    def get(self, path: str) -> dict[str, Any]:
        """JSON of the server."""
        # A proxy does not know a server of this machine.
        opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if self._command else []))
        with opener.open(self.url + path, timeout=30) as reply:
            return json.load(reply)

    def explained(self, what: str) -> str:
        """Why a connection was closed: how the server ended, if it did, and its last output."""
        if self._process is None:
            return f"the server closed the connection: {what}"
        try:
            # A connection is closed before its server has ended.
            how = f"ended with {self._process.wait(END_S)}"
        except subprocess.TimeoutExpired:
            how = f"closed the connection: {what}"
        else:
            self._reader.join(END_S)
        lines = "\n".join(self._printed)
        return f"the server {' '.join(self._command)!r} {how}; its last output:\n{lines}"

    def _keep(self, output: IO[bytes]) -> None:
        for line in output:
            self._printed.append(line.decode("utf-8", "replace").rstrip()[:300])
            # For the error of a process that ends, or is not ready in time.
            sys.stderr.buffer.write(line)


class NoRoomError(Exception):
    """The server has as many sessions as it takes."""


class NoActionError(Exception):
    """A reply is no action."""


async def closed(client: GenericEnvClient) -> None:
    """Close a client, whatever state its connection is in."""
    with suppress(Exception):
        await client.disconnect()


async def last_words(client: GenericEnvClient) -> str:
    """The error that a server sent before it closed the connection, "" if it sent none."""
    with suppress(Exception):
        # No public method reads without sending first.
        data = (await client._receive())["data"]
        return f"Server error: {data['message']} (code: {data['code']})"
    return ""


def fields_of(schema: dict[str, Any]) -> dict[str, Any]:
    """The fields of an action, without its metadata."""
    return {name: field for name, field in schema.get("properties", {}).items() if name != "metadata"}


def text_field(fields: dict[str, Any], required: list[str]) -> str:
    """The name of the field that a reply fills: the only one, or the only required one, if it is a text; else ""."""
    wanted = [name for name in fields if name in required] or list(fields)
    alone = len(wanted) == 1 and fields[wanted[0]].get("type") == "string" and "enum" not in fields[wanted[0]]
    return wanted[0] if alone else ""


def shape_of(schema: dict[str, Any]) -> dict[str, Any]:
    """What of a schema an agent needs: its fields but for the metadata."""
    kept = {name: value for name, value in schema.items() if name in ("type", "required", "$defs")}
    return {**kept, "properties": fields_of(schema)}


def action_in(text: str) -> dict[str, Any]:
    """The last JSON object in a reply. Raises `NoActionError` without one."""
    decoder, found, place = json.JSONDecoder(), None, text.find("{")
    while place >= 0:
        try:
            found, end = decoder.raw_decode(text, place)
        except ValueError:
            end = place + 1
        place = text.find("{", end)
    if found is None:
        raise NoActionError("reply with a JSON object")
    return found


def result_of_tool(observation: dict[str, Any]) -> dict[str, Any]:
    """The text of a tool's result, and whether it is one. Raises `RuntimeError` where the tool could not be asked."""
    if error := observation.get("error"):
        text = str(error.get("message") or error)
        if error.get("error_type") in BROKEN:
            raise RuntimeError(f"the tool {observation.get('tool_name')!r} failed ({error['error_type']}): {text}")
        return {"text": text, "ok": False}
    result, ok = observation.get("result"), True
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        ok = not (result.get("is_error") or result.get("isError"))
        texts = [part["text"] for part in result["content"] if isinstance(part, dict) and "text" in part]
        result = "\n".join(texts)
    return {"text": result if isinstance(result, str) else json.dumps(result, ensure_ascii=False), "ok": ok}
