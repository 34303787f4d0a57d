"""Reproduce defects that midstream once had, from outside: `python scripts/audit.py [--only PREFIX]`.

Prints a line for each: group, name, `ok` or `WRONG`, and what was seen; exits with 1 if any is WRONG. `--only` takes
the beginning of a group or of "GROUP NAME". Each check runs in a forked process with a directory, a time limit and a
memory limit of its own; its servers end with it.

Out of scope. They need a real model: prompts without a worked example, JSON fences of small models, a system prompt
that wins over tools, models in process for the command line and for practice, threads and dtype of the learner, memory
over steps. They need Docker: the image's extras. They need minutes of training: `function-calling-tiny` on new seeds.
Not built yet: sampling and roots for MCP servers, lessons that wait for a person.
"""

from __future__ import annotations

import argparse
import fcntl
import http.client
import io
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENAI_API_KEY", "HF_HUB_OFFLINE"):
    os.environ[variable] = "1"
for variable in ("MIDSTREAM_TRUST", "MIDSTREAM_ADMIN_KEY"):
    os.environ.pop(variable, None)
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from midstream.cli.main import main as midstream  # noqa: E402
from support.llm_server import LLMServer, completion  # noqa: E402

Found = tuple[bool, object]
CHECKS: dict[str, Callable[[], Found]] = {}
FORK: Any = multiprocessing.get_context("fork")
LIMIT_S = 40.0  # of a check; most take a few seconds
MEMORY = 6 << 30
TASK = {"question": "6 * 7 ?", "answer": "42"}
ZERO = "/dev/zero"


def check(group: str) -> Callable[[Callable[[], Found]], Callable[[], Found]]:
    """Add a check, named by its docstring."""

    def add(made: Callable[[], Found]) -> Callable[[], Found]:
        CHECKS[f"{group:9} {str(made.__doc__).strip('.')}"] = made
        return made

    return add


# -- what the checks share ---------------------------------------------------------------------------------------------


def cli(*words: Any) -> tuple[int, str]:
    """The exit code of a command, and all that it prints."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        try:
            code = midstream([str(word) for word in words])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, printed.getvalue()


def first(text: str) -> str:
    """The first line that says something, shortened."""
    return next((line.strip()[:110] for line in text.splitlines() if line.strip()), "nothing")


def write(name: str, text: str | list[dict[str, Any]]) -> str:
    """Write a file, or rows as JSON lines."""
    lines = text if isinstance(text, str) else "".join(json.dumps(row) + "\n" for row in text)
    Path(name).write_text(lines, encoding="utf-8")
    return name


def ask(address: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """Status and JSON of a request; a body that is no bytes is sent as JSON."""
    host, _, path = address.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=30)
    sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    try:
        connection.request("GET" if body is None else "POST", f"/{path}", sent, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()


@contextmanager
def serving(*words: str, reply: Any = lambda _: "42") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Sessions for agents that run elsewhere: the address, and the server's process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with LLMServer(reply) as model:
        command = [sys.executable, "-m", "midstream.cli.main", "serve", "own-agent", "--sessions", "--port", str(port)]
        command += ["--base-url", model.base_url, "--model", "m", "--out", "run", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        address = f"http://127.0.0.1:{port}"
        try:
            while process.poll() is None:
                try:
                    ask(f"{address}/healthz")
                    break
                except OSError:
                    time.sleep(0.1)
            yield address, process
        finally:
            process.kill()
            process.wait()


def opened(address: str, name: str = "x", **task: Any) -> dict[str, Any]:
    """A session that is open."""
    status, session = ask(f"{address}/v1/sessions", {"id": name, "task": {**TASK, **task}})
    assert status == 200, (status, session)
    return session


def chat(session: dict[str, Any], **fields: Any) -> tuple[int, Any]:
    """A request of the session's agent."""
    body = {"model": "policy", "messages": [{"role": "user", "content": "6 * 7 ?"}], **fields}
    return ask(f"{session['base_url']}/chat/completions", body, Authorization=f"Bearer {session['key']}")


def end(session: dict[str, Any], **body: Any) -> int:
    """The status of the session's end."""
    return ask(session["base_url"].removesuffix("/v1") + "/end", body)[0]


def small_run(*words: str) -> Path:
    """A run directory of an evaluation without a model."""
    greedy = "evaluation.temperatures=[0.0]"
    code, said = cli("eval", "training-free-simulated", "--count", 2, "--set", greedy, "--out", "run", "--quiet", *words)
    assert code == 0, said
    return Path("run")


# -- borders: what others send ------------------------------------------------------------------------------------------


@check("borders")
def surrogate() -> Found:
    """Surrogate in a session id."""
    with serving() as (address, _):
        wrong = ask(f"{address}/v1/sessions", b'{"id":"\\ud800","task":{"question":"q","answer":"a"}}')[0]
        return (wrong, end(opened(address), answer="42")) == (400, 200), f"{wrong}, then the server answers"


@check("borders")
def wrong_task() -> Found:
    """Wrong task under a session id."""
    with serving() as (address, _):
        wrong = ask(f"{address}/v1/sessions", {"id": "x", "task": {"quest": 1}})[0]
        right = ask(f"{address}/v1/sessions", {"id": "x", "task": TASK})[0]
        return (wrong, right) == (400, 200), f"{wrong}, the right one under its id {right}"


@check("borders")
def metadata() -> Found:
    """Task metadata that JSON cannot hold."""
    with serving() as (address, _):
        body = '{"id":"x","task":{"question":"q","answer":"a","metadata":{"a":%s}}}'
        wrong = [
            ask(f"{address}/v1/sessions", (body % value).encode())[0] for value in ("NaN", "1e999", '"\\udfff"', "1")
        ]
        return wrong == [400, 400, 400, 200], f"NaN, 1e999, half a pair, 1: {wrong}"


@check("borders")
def hosts() -> Found:
    """Foreign Host and Origin at the gateway."""
    with serving() as (address, _):
        session = opened(address)
        heads: tuple[dict[str, str], ...] = ({"Host": "evil.example:8321"}, {"Origin": "http://evil.example"}, {})
        url, key = f"{session['base_url']}/chat/completions", f"Bearer {session['key']}"
        body = {"model": "policy", "messages": [{"role": "user", "content": "q"}]}
        found = [ask(url, body, Authorization=key, **head)[0] for head in heads]
        return found == [403, 403, 200], f"Host, Origin, neither: {found}"


@check("borders")
def half_requests() -> Found:
    """Hundreds of half requests."""
    with serving() as (address, _):
        port, began = int(address.rpartition(":")[2]), time.monotonic()
        halves = [b"POST /v1/sess", b"POST /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{"]
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
        for number, connection in enumerate(connections):
            connection.sendall(halves[number % 2])
        left = 0
        for connection in connections:
            connection.settimeout(max(0.01, began + 20 - time.monotonic()))
            try:
                while connection.recv(4096):
                    pass
            except TimeoutError:
                left += 1
            except OSError:
                pass
        return left == 0, f"{left} of 400 open after {time.monotonic() - began:.0f} s"


@check("borders")
def two_lengths() -> Found:
    """Content-Length with Transfer-Encoding."""
    with serving() as (address, _):
        port = int(address.rpartition(":")[2])
        head = f"Host: 127.0.0.1:{port}\r\n"
        both = "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=15) as connection:
            connection.sendall(f"POST /v1/sessions HTTP/1.1\r\n{head}{both}GET /healthz HTTP/1.1\r\n{head}\r\n".encode())
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        found = re.findall(r"HTTP/1.1 (\d+)", answer.decode())
        return found == ["400"], f"answers on one connection: {found}"


@check("borders")
def strict_rewards() -> Found:
    """Rewards that are no numbers."""
    with serving() as (address, _):
        session = opened(address)
        found = [end(session, answer="42", reward=reward) for reward in ("1", True, 0.5)]
        return found == [400, 400, 200], f'"1", true, 0.5: {found}'


@check("borders")
def killed_server() -> Found:
    """Ended session after a kill and a new start."""
    with serving() as (address, _):
        ended = end(opened(address, "mine"), answer="42")
    shown = cli("show", "run")[1]
    advice = re.findall(r"midstream (\w+)", shown)
    with serving() as (address, _):
        again = ask(f"{address}/v1/sessions", {"id": "mine", "task": TASK})[0]
    right = (ended, again) == (200, 409) and "serve" in advice and "resume" not in advice
    return right, f"ended {ended}, opened again {again}, show advises {sorted(set(advice))}"


@check("borders")
def session_limits() -> Found:
    """Limits of an agent whose sessions are served."""
    words = ("agent.max_calls=2", "agent.max_tokens=200")
    reply = lambda body: completion(body, "x" * body["max_tokens"])  # noqa: E731
    with serving("--set", words[0]) as (address, _):
        session = opened(address)
        calls = [chat(session)[0] for _ in range(3)]
    shutil.rmtree("run")
    with serving("--set", words[1], reply=reply) as (address, _), ThreadPoolExecutor(60) as pool:
        session = opened(address)
        texts = list(pool.map(lambda number: chat(session, max_tokens=60, seed=number)[1], range(60)))
        spent = sum(text["usage"]["completion_tokens"] for text in texts if "usage" in text)
    return (calls, spent) == ([200, 200, 400], 200), f"max_calls=2: {calls}; max_tokens=200, 60 at once: {spent}"


@check("borders")
def sessions_without_a_place() -> Found:
    """Sessions on an open host without a key, or on a taken port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = (("--host", "0.0.0.0"), ("--port", taken.getsockname()[1]))
        said = [cli("serve", "own-agent", "--sessions", "--out", f"run{i}", *each)[1] for i, each in enumerate(words)]
    codes = [re.findall(r"error\[([\w-]+)\]", text) for text in said]
    right = codes == [["admin-key-missing"], ["address-taken"]] and "Traceback" not in "".join(said)
    return right, f"{codes}"


@check("borders")
def full_disk() -> Found:
    """Session that ends on a full disk."""
    with serving() as (address, process):
        session = opened(address)
        # No file may grow, as where no space is left.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
        status = end(session, answer="42" * 10_000)
        said = process.communicate(timeout=15)[0]
    right = status == 500 and "Traceback" not in said and process.returncode == 1
    return right, f"end {status}, exit code {process.returncode}, {first(said[said.find('error[') :])}"


@check("borders")
def ctrl_c() -> Found:
    """Ctrl-C with 200 open sessions."""
    with serving() as (address, process):
        for number in range(200):
            opened(address, f"s{number}")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=20)[0]
        took = time.monotonic() - began
    return took < 4 and "Traceback" not in said, f"{took:.1f} s, exit code {process.returncode}"


@check("borders")
def scoring_time() -> Found:
    """Quadratic scoring of long answers."""
    with serving() as (address, _):
        took = {}
        for number, piece in enumerate(("’a", "–a", "a’the’", "\0")):
            session = opened(address, f"s{number}", answer="a word")
            began = time.monotonic()
            answer = (piece * 5000)[:10_000] if piece != "\0" else piece * 150_000
            assert end(session, answer=answer) == 200
            took[piece] = round(time.monotonic() - began, 1)
    return max(took.values()) < 3, f"seconds for 10,000 characters: {took}"


@check("borders")
def broken_address() -> Found:
    """Address and redirect that no name decodes."""
    from support.page_server import FIXED, PageServer, head

    addresses, said = ["http://xn--/", "http://www.xn--/x", "http://a.xn--zzzzzzz-/"], []
    FIXED["/to"] = head(302, Location="http://xn--/")
    with PageServer() as site:
        table = {"url": site.url("/to"), "query": "x"}
        local = ("--set", 'tools.web_page={type="web_page",allow_private=["127.0.0.1"],ports=[%d]}' % site.port)
        for address in addresses:
            said.append(cli("tools", "web_page", f"url={address}", "query=x", "--quiet"))
        said.append(cli("tools", "web_page", json.dumps(table), "--quiet", *local))
        followed = "/to" in site.paths
    right = followed and all("Traceback" not in text and "not the address" in text for _, text in said)
    return right, f"exit codes {[code for code, _ in said]}, {first(said[-1][1])}"


@check("borders")
def broken_tool() -> Found:
    """Tool that raises an unexpected exception."""
    write("mine.py", "def lookup(key: str) -> str:\n    'Look up.'\n    raise UnicodeError('label empty')\n")
    write("q.jsonl", [TASK])
    call = '<tool_call>{"name": "lookup", "arguments": {"key": "a"}}</tool_call>'
    with LLMServer(lambda body: "<answer>42</answer>" if "label empty" in str(body) else call) as model:
        words = ["--tools", "mine.py:lookup", "--base-url", model.base_url, "--model", "m", "--tasks", "q.jsonl"]
        code, said = cli("eval", "tool-calling", *words, "--out", "run", "--quiet")
    return code == 0 and "100.0%" in said, f"exit code {code}, the model sees the error and answers: {'100.0%' in said}"


@check("borders")
def template_tokens() -> Found:
    """Chat-template tokens in what a tool returns."""
    tokens = "<image> [SEP] <mask> <PRE> <EOT> <eom> <eod> <function_calls> <|im_start|>".split()
    write("mine.py", f"def lookup(key: str) -> str:\n    'Look up.'\n    return 'found {' '.join(tokens)}'\n")
    write("q.jsonl", [TASK])
    call = '<tool_call>{"name": "lookup", "arguments": {"key": "a"}}</tool_call>'
    with LLMServer(lambda body: "<answer>42</answer>" if "found" in str(body["messages"][1:]) else call) as model:
        words = ["--tools", "mine.py:lookup", "--base-url", model.base_url, "--model", "m", "--tasks", "q.jsonl"]
        cli("eval", "tool-calling", *words, "--out", "run", "--quiet")
        results = [str(message["content"]) for message in model.bodies[-1]["messages"] if "found" in str(message)]
    left = [token for token in tokens if token in "".join(results)]
    return bool(results) and not left, f"reach the model as they are: {left or 'none'}"


# -- running them ------------------------------------------------------------------------------------------------------


def main() -> int:
    """Run the checks; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="PREFIX")
    only = " ".join(parser.parse_args().only.split()).casefold()
    import midstream.api  # the forks share it
    import midstream.training.learner  # noqa: F401

    wrong = 0
    for name, made in CHECKS.items():
        if " ".join(name.split()).casefold().startswith(only):
            right, seen, took = run(made)
            wrong += not right
            print(f"{name:64} {'ok   ' if right else 'WRONG'} {took:4.1f} s  {seen}", flush=True)
    return 1 if wrong else 0


def run(made: Callable[[], Found]) -> tuple[bool, str, float]:
    """One check in a process, a process group and a directory of its own: whether it is right, what it saw, seconds."""
    began, (here, there) = time.monotonic(), FORK.Pipe()
    with tempfile.TemporaryDirectory(prefix="midstream-audit-") as directory:
        process = FORK.Process(target=_work, args=(made, Path(directory), there))
        process.start()
        there.close()
        try:
            right, seen = here.recv() if here.poll(LIMIT_S) else (False, f"no end within {LIMIT_S:g} s")
        except EOFError:
            right, seen = False, "the process ended"
        try:
            os.killpg(process.pid, signal.SIGKILL)  # with the servers that it left
        except ProcessLookupError:
            pass
        process.join()
    return right, " ".join(str(seen).split())[:300], time.monotonic() - began


def _work(made: Callable[[], Found], directory: Path, there: Any) -> None:
    os.setsid()
    os.chdir(directory)
    os.environ |= {"HOME": str(directory), "XDG_CACHE_HOME": str(directory)}
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    (directory / "log").touch()
    with open(directory / "log", "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    try:
        there.send(made())
    except BaseException as failure:  # noqa: BLE001  # the check has failed, whatever it is
        there.send((False, f"{type(failure).__name__}: {failure}"))
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
