"""A served agent of a tool and an engine in a file: in a process of its own, or in a thread of this one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from socket import create_server
from typing import Any
from urllib.error import HTTPError, URLError

from midstream import serve
from midstream.gateway.settings import ServeConfig
from midstream.process import STOP, Stop

MIDSTREAM = (sys.executable, "-m", "midstream.cli.main")
ENGINE = '''
import re
import midstream as ms

async def answer(messages):
    """Calls the tool, then repeats what it said."""
    last = messages[-1]
    if last["role"] == "tool":
        return last["content"]
    if "Lessons" in str(messages):
        return "a lesson"
    numbers = re.findall(r"[0-9]+", last["content"])
    if len(numbers) < 2:
        return "I need two numbers."
    return f'<tool_call>{{"name": "times", "arguments": {{"a": {numbers[-2]}, "b": {numbers[-1]}}}}}</tool_call>'

async def broken(messages):
    raise OSError("no model here")

@ms.tool
def times(a: int, b: int) -> int:
    """Multiply."""
    return a * b
'''
RECIPE = """
extends = "tool-calling"
name = "multiplier"
[engines.model]
type = "parts.py:ENGINE"
[tools.python]
type = "parts.py:times"
alias = "times"
"""


def write_recipe(directory: Path, engine: str = "answer") -> Path:
    """The recipe, next to the file of its engines and its tool."""
    (directory / "parts.py").write_text(ENGINE)
    (directory / "recipe.toml").write_text(RECIPE.replace("ENGINE", engine))
    return directory / "recipe.toml"


@contextmanager
def serving(*words: Any, ends: bool = False, kills: bool = False) -> Iterator[str]:
    """A `midstream serve` process; yields its address. It `ends` itself, or is ended as by a service manager."""
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*MIDSTREAM, "serve", *map(str, words), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        address, until = f"http://127.0.0.1:{port}", time.monotonic() + 90
        while True:
            try:
                assert json.load(urllib.request.urlopen(f"{address}/healthz", timeout=5))["status"] == "ok"
                break
            except (URLError, ConnectionError):
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < until
                time.sleep(0.05)
        yield address
    finally:
        if not ends:
            process.send_signal(signal.SIGKILL if kills else signal.SIGTERM)
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if kills else 0), shown


@contextmanager
def serving_here(recipe: Path, serves: Callable[..., Any] = serve.serve_agent, *more: Any) -> Iterator[str]:
    """The same in a thread of this process, by the function `serves`."""
    stop, address = Stop(), Queue[Any]()

    def work() -> None:
        STOP.set(stop)
        serves(str(recipe), *more, config=ServeConfig(port=0), ready=address.put)

    served = ThreadPoolExecutor(1).submit(work)
    served.add_done_callback(lambda _: address.put(""))  # it could not begin, or has ended
    try:
        yield address.get(timeout=60) or served.result()
    finally:
        stop()
        served.result(timeout=60)


def post(url: str, body: Any, key: str = "") -> tuple[int, Any]:
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60) as got:
            text = got.read().decode()
            return got.status, json.loads(text) if text.startswith("{") else text
    except HTTPError as refused:
        return refused.code, json.load(refused)["error"]
