"""Validate arguments under JSON schemas that others write, within a clock.

A check can take longer than any run: of 40 definitions that each refer to the next one twice (3 kB), or of the pattern
`^([a-z]+ ?)+$` once a model writes 45 letters and a "!". So only checks whose work is known beforehand run in process:
every keyword looks at each value at most once, references are expanded, and nodes of the schema times nodes of the
arguments stay below a bound. Each other check runs in its own process, which the kernel ends after `CLOCK_S`. That is
CPU time: what else the machine does decides nothing about arguments, up to ten times as long.

    host ── one byte with a socket ──> python -m midstream.core.json_schema ── fork ──> a process for each check
      └──────────────────────── [schema, arguments, ...], and the verdict ──────────────────────┘

The first such check starts the program, which forks in some milliseconds, holds no keys, and ends with the host.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from threading import Lock
from typing import Any, TypeAlias, TypeVar

from jsonschema import Draft3Validator, Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from midstream.core.errors import ToolServerError, did_you_mean

CLOCK_S = 1.0  # for a check in its own process; a usual one takes some milliseconds
LONGEST = 2_000_000  # characters of arguments as JSON
UNFINISHED = f"they cannot be checked within {CLOCK_S:g} s; write shorter or simpler values"
_MOST_NODES = 1000  # of a schema that is checked in process: 0.1 ms each, once
_MOST_VISITS = 10_000  # nodes of a schema x nodes of the arguments: up to 6 us each
_LONGEST_NAME = 100  # characters of a misspelt value that is compared with the possible ones
_PROCESSES = 32  # at a time; others wait for one of them to end
_MEMORY_MB = 512
_START_S = 30.0
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")

# Keywords that look at a value once, by what they hold: schemas, one schema, or plain data.
_SCHEMAS, _SCHEMA = ("allOf", "anyOf", "oneOf"), ("items", "additionalProperties", "not")
_DATA = (
    "type required enum const format multipleOf minimum maximum exclusiveMinimum exclusiveMaximum minLength maxLength "
    "minItems maxItems minProperties maxProperties"
).split()
_BASES = ("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")  # change what a reference means
_DEFINITION = re.compile(r"#/(\$defs|definitions)/([\w.-]+)")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

T = TypeVar("T")
_Verdict: TypeAlias = tuple[str, str]  # "fits", "wrong" (the arguments) or "unusable" (the schema), and why


def schema_error(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str | None:
    """`schema_error_async` for callers without an event loop."""
    return blocking(schema_error_async(arguments, schema))


async def schema_error_async(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str | None:
    """What is wrong with `arguments` under a JSON schema, in words, or None. Remote references are never fetched.

    Arguments that cannot be checked within `CLOCK_S` are wrong (`UNFINISHED`).

    Raises:
        ToolServerError: the schema is invalid, or no process could be started; neither is the model's fault.
    """
    kind, why = await _verdict(arguments, schema)
    if kind == "unusable":
        raise ToolServerError(
            f"a tool's schema cannot be used: {why}",
            code="tool-schema-invalid",
            cause=f"it is not a JSON schema that is complete in itself: {str(schema)[:300]}",
            fix="correct the tool's `parameters`",
        )
    return why or None


async def unusable_schema(schema: Mapping[str, Any]) -> str | None:
    """The reason why arguments cannot be checked under a schema, or None."""
    kind, why = await _verdict(None, schema)
    return why if kind == "unusable" else f"it cannot be checked within {CLOCK_S:g} s" if why == UNFINISHED else None


def blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of this module in an event loop of another thread, and wait for its result."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


async def _verdict(arguments: Mapping[str, Any] | None, schema: Mapping[str, Any]) -> _Verdict:
    """The verdict on arguments; if they are None, on the schema itself."""
    try:
        text = json.dumps(schema)
        visits = _nodes(text) * _size(arguments)
    except (TypeError, ValueError, AttributeError, RecursionError) as failure:  # no JSON, too deep, or an odd `$schema`
        return "unusable", f"{type(failure).__name__}: {failure}"
    if visits <= _MOST_VISITS or not hasattr(socket, "send_fds"):  # Windows has no fork
        return _judged(text, arguments)
    written = json.dumps(arguments)
    if len(written) > LONGEST:
        return "wrong", f"they have {len(written)} characters, more than {LONGEST}"
    reply = await _FORKER.ask(f"[{json.dumps(text)}, {written}]".encode())
    if not reply:
        raise ToolServerError(
            "no process to check a tool's arguments in",
            code="worker-not-started",
            cause="this machine is short of memory or processes",
            fix="free some memory",
        )
    if len(reply) == 1:
        return "wrong", UNFINISHED
    kind, why = json.loads(reply[1:])
    return kind, why


# --- in process -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _validator(text: str) -> Validator:
    """The validator of a schema's JSON text, made once; an invalid schema raises `SchemaError`."""
    schema = json.loads(text)
    kind = validator_for(schema, default=Draft202012Validator)
    kind.check_schema(schema)
    return kind(schema, registry=Registry())


@lru_cache(maxsize=1024)
def _nodes(text: str) -> float:
    """The nodes of a schema with all references expanded; infinite above `_MOST_NODES` and for any other keyword."""
    if len(text) > 64 * _MOST_NODES:  # too long to look at
        return math.inf
    schema = json.loads(text)
    kind = validator_for(schema, default=Draft202012Validator)
    count, waiting = 0, [schema]
    while waiting:
        node = waiting.pop()
        count += 1
        if isinstance(node, bool):
            continue
        if count + len(waiting) > _MOST_NODES or not isinstance(node, dict):
            return math.inf
        if "$schema" in node and node is not schema:  # other keywords from here on
            return math.inf
        for keyword, value in node.items():
            if keyword in _SCHEMAS and isinstance(value, list):
                waiting += value
            elif keyword == "properties" and isinstance(value, dict):
                waiting += value.values()
            elif keyword in _SCHEMA:
                waiting.append(value)
            elif keyword == "$ref" and (found := _DEFINITION.fullmatch(str(value))):
                table = schema.get(found[1])
                waiting.append(table.get(found[2]) if isinstance(table, dict) else None)
            elif keyword in _BASES or (keyword in kind.VALIDATORS and keyword not in _DATA):
                return math.inf
            else:
                count += _size(value)
    # Draft 3 has schemas in `type`.
    return math.inf if count > _MOST_NODES or kind is Draft3Validator else count


def _size(value: Any) -> int:
    """The nodes of a JSON value, keys included; long texts and numbers count more, because errors quote them."""
    count, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        count += 1
        if isinstance(item, str):
            count += len(item) >> 6
        elif isinstance(item, dict):
            waiting += item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, int):
            count += item.bit_length() >> 8
    return count


def _judged(text: str, arguments: Mapping[str, Any] | None) -> _Verdict:
    """Check the arguments under a schema; without arguments, the schema and all its references."""
    try:
        validator = _validator(text)
        schema: Any = validator.schema
        if arguments is None:
            resolver = Registry().resolver_with_root(DRAFT202012.create_resource(schema))
            for reference in _references(schema):
                resolver.lookup(reference)
        error = best_match(validator.iter_errors(arguments or {}))
    except OverflowError as failure:  # an integer that is too large for a float, as for `multipleOf`
        return "wrong", str(failure)
    except MemoryError:
        return "wrong", UNFINISHED
    except Exception as failure:  # noqa: BLE001 - what a hostile schema raises: no type, no reference, no pattern
        why = failure.message if isinstance(failure, SchemaError) else f"{type(failure).__name__}: {failure}"
        return "unusable", why[:300]
    if error is not None:
        where = f"at {error.json_path}: " if error.path else ""
        misspelt = (
            error.validator == "enum" and isinstance(error.instance, str) and len(error.instance) <= _LONGEST_NAME
        )
        close = did_you_mean(error.instance, map(str, error.validator_value)) if misspelt else ""
        return "wrong", where + close + error.message[:300]
    known = schema.get("properties", {})
    open_ended = "properties" not in schema or "additionalProperties" in schema or "patternProperties" in schema
    if extra := [] if open_ended else sorted(set(arguments or ()) - set(known)):
        return "wrong", f"unknown arguments {', '.join(extra)[:200]} (known: {', '.join(known)})"
    return "fits", ""


def _references(value: Any) -> Iterator[str]:
    """All references of a schema, and texts of examples that look like references."""
    if isinstance(value, list):
        for item in value:
            yield from _references(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key in _REFERENCES and isinstance(item, str):
                yield item
            else:
                yield from _references(item)


# --- in its own process -----------------------------------------------------------------------------------------------


class _Forker:
    """The host's end of the program that forks a process for each check; any thread and event loop may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    async def ask(self, request: bytes) -> bytes:
        """What a new process answers: nothing if it never started, one byte if it was ended."""
        reply, loop = b"", asyncio.get_running_loop()
        with self._channel() as channel, suppress(OSError):
            channel.setblocking(False)
            async with asyncio.timeout(_START_S):
                await loop.sock_sendall(channel, request)
                channel.shutdown(socket.SHUT_WR)
                while piece := await loop.sock_recv(channel, 1 << 16):
                    reply += piece
        return reply

    def _channel(self) -> socket.socket:
        """Our end of a channel to a new process; it closes unanswered if none can be started, or too many wait."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock, suppress(OSError):
            if self._process is None or self._process.poll() is not None:  # the first check, or it was killed
                self.close()
                self._control, other = socket.socketpair()
                self._control.setblocking(False)
                environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
                with other:
                    self._process = subprocess.Popen(
                        [sys.executable, "-P", "-m", __spec__.name],
                        stdin=other.fileno(),
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        env=environment | {"PYTHONHASHSEED": "0"},  # the order of a set decides which error is named
                        start_new_session=True,  # Ctrl-C is for the run
                    )
                atexit.register(self.close)
            assert self._control is not None
            socket.send_fds(self._control, [b"\0"], [theirs.fileno()])
        return ours

    def close(self) -> None:
        """End the program; what it forked ends by its own clock."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


_FORKER = _Forker()


def main() -> None:
    """Fork a process for each socket that arrives over standard input, until that is closed."""
    import resource

    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    with suppress(ValueError, OSError):  # a lower limit holds already
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MB << 20, _MEMORY_MB << 20))
    _judged("{}", {})  # what the libraries prepare on first use, before the forks
    gc.freeze()
    control, running = socket.socket(fileno=0), 0
    while True:
        _, channels, _, _ = socket.recv_fds(control, 1, 1)
        if not channels:
            os.killpg(0, signal.SIGKILL)  # the host is gone
        if running == _PROCESSES:
            os.wait()
            running -= 1
        running += 1
        if os.fork() == 0:
            _answer(socket.socket(fileno=channels[0]))
            os._exit(0)
        os.close(channels[0])


def _answer(channel: socket.socket) -> None:
    """Answer one request, in a process that the kernel ends when the clock does."""
    os.nice(5)  # many that never end must not keep the program from forking, nor the host from its work
    signal.setitimer(signal.ITIMER_PROF, CLOCK_S)
    signal.setitimer(signal.ITIMER_REAL, 10 * CLOCK_S)
    channel.sendall(b"+")
    with channel.makefile("rb") as file:
        text, arguments = json.loads(file.read())
    channel.sendall(json.dumps(_judged(text, arguments)).encode())


if __name__ == "__main__":
    main()
