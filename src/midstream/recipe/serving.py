"""Model servers that a run starts for itself, watches, and ends: engines with `serve`, or `--serve-with` of a command.

    [engines.model]
    provider = "vllm"
    model = "Qwen/Qwen2.5-7B-Instruct"
    serve = "--max-model-len 16384"       # vllm serve Qwen/... --port 8000 --host localhost --max-model-len 16384

One process for each address. A server ends with the run, also with one that is killed (`core/supervise.py`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from midstream.core import supervise
from midstream.core.errors import EngineError, UnsupportedError
from midstream.core.events import Listener, Note, ServerStarts
from midstream.core.secrets import without_secrets
from midstream.engines.openai.providers import PROVIDERS
from midstream.engines.openai.settings import OpenAIConfig
from midstream.recipe.schema import Recipe

# Until a server answers: it may download its model.
START_S = 1800.0
_POLL_S = 0.25
_LAST_LINES = 15
_MOST_LINE = 300
# A long run's log has gigabytes.
_LAST_BYTES = 64 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerCommand:
    """How one server is started: `engine` is the first of those that ask it."""

    engine: str
    provider: str
    host: str
    port: int
    words: tuple[str, ...]
    environment: dict[str, str]


def server_commands(recipe: Recipe) -> list[ServerCommand]:
    """The servers of the engines with `serve`, in their order; engines of one address share one."""
    configs = {name: engine.config for name, engine in recipe.engines.items()}
    remote = {name: config for name, config in configs.items() if isinstance(config, OpenAIConfig)}
    commands: dict[tuple[str, int], ServerCommand] = {}
    for name, config in remote.items():
        host, port = address = _address(config)
        if config.serve is None or address in commands:
            continue
        sharing = {other: part for other, part in remote.items() if _address(part) == address}
        environment = {}
        start = PROVIDERS[config.provider].start.format(model=shlex.quote(config.model), port=port)
        words = [*shlex.split(start), "--host", host]
        if config.provider == "llama_cpp" and not Path(config.model).exists():
            words[words.index("--model")] = "--hf-repo"
        if config.provider == "vllm" and any(part.token_ids for part in sharing.values()):
            words += ["--logprobs-mode", "processed_logprobs"]
        if config.provider == "vllm" and recipe.learner.lora and recipe.modules[recipe.trained].engine in sharing:
            # vLLM takes powers of two.
            most = max(8, 1 << (recipe.learner.lora.rank - 1).bit_length())
            words += ["--enable-lora", "--max-lora-rank", str(most)]
            if recipe.learner.lora.per_role:
                words += ["--max-loras", str(len(recipe.trained_modules))]
            environment = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
        for options in dict.fromkeys(part.serve for part in sharing.values() if part.serve):
            words += shlex.split(options)
        commands[address] = ServerCommand(
            engine=name, provider=config.provider, host=host, port=port, words=tuple(words), environment=environment
        )
    return list(commands.values())


def _address(config: OpenAIConfig) -> tuple[str, int]:
    url = urlsplit(config.base_url)
    return url.hostname or "localhost", url.port or 80


@contextmanager
def served(recipe: Recipe, listener: Listener) -> Iterator[None]:
    """Run the servers of a recipe; they answer from the beginning of the block, and end with it.

    Raises:
        UnsupportedError: the server's program is not installed.
        EngineError: the address is in use, or the server ended or did not answer within `START_S`.
    """
    with ExitStack() as running:
        for command in server_commands(recipe):
            running.enter_context(_server(command, listener))
        yield


@contextmanager
def _server(command: ServerCommand, listener: Listener) -> Iterator[None]:
    program, *arguments = command.words
    # A program of this Python's environment need not be on PATH.
    found = shutil.which(program, path=os.pathsep.join([os.environ.get("PATH", ""), os.path.dirname(sys.executable)]))
    if found is None:
        raise UnsupportedError(
            f"{program} is not installed",
            code="program-not-installed",
            fix=f"install {command.provider}, or start the server elsewhere and leave serve out",
        )
    if _answers(command) is not None:
        raise EngineError(
            f"something listens at {command.host}:{command.port} already",
            code="address-in-use",
            fix=f"use what is there without serve or --serve-with, or set another engines.{command.engine}.base_url",
        )
    descriptor, log = tempfile.mkstemp(prefix=f"midstream-{program}-{command.port}-", suffix=".log")
    listener(ServerStarts(command=shlex.join(command.words), log=log))
    began = time.monotonic()
    with os.fdopen(descriptor, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, supervise.__file__, found, *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, **command.environment},
            # Ctrl-C is for the run, which then ends the server.
            start_new_session=True,
        )
    ends = threading.Event()
    assert process.stdin is not None
    try:
        while _answers(command) != 200:
            if process.poll() is not None or time.monotonic() - began > START_S:
                why = "ended" if process.poll() is not None else f"does not answer after {START_S:g} s"
                raise EngineError(
                    f"{program} {why}: {_last_lines(log)}",
                    code="server-not-started",
                    fix=f"read {log}, and correct engines.{command.engine}",
                    retryable=False,
                )
            time.sleep(_POLL_S)
        listener(ServerStarts(command=shlex.join(command.words), log=log, ready_s=time.monotonic() - began))

        def watch() -> None:
            process.wait()
            if not ends.is_set():
                listener(Note(f"{program} ended in the middle of the run: {_last_lines(log)}"))

        threading.Thread(target=watch, daemon=True).start()
        yield
    finally:
        ends.set()
        whole = process.poll() is None
        # By this the supervisor ends.
        process.stdin.close()
        process.wait(3 * supervise.TERMINATE_S)
        if whole and not sys.exc_info()[0]:
            os.unlink(log)


def _answers(command: ServerCommand) -> int | None:
    """The status of the server's /health; None if nothing listens."""
    connection = HTTPConnection(command.host, command.port, timeout=1)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    except (HTTPException, TimeoutError, socket.gaierror):
        return 0
    except OSError:
        return None
    finally:
        connection.close()


def _last_lines(log: str) -> str:
    with open(log, "rb") as output:
        output.seek(max(0, os.path.getsize(log) - _LAST_BYTES))
        lines = output.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
    # A server may print its options or its environment, and errors are written into run directories.
    shown = without_secrets([line.strip() for line in lines if line.strip()])
    return " | ".join(line[:_MOST_LINE] for line in shown) or "it wrote nothing"
