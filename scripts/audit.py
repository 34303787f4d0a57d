"""Reproduce defects that midstream once had, from outside: `python scripts/audit.py [--only PREFIX]`.

Prints a line for each: group, name, `ok` or `WRONG`, and what was seen; exits with 1 if any is WRONG. `--only` takes
the beginning of a group or of "GROUP NAME". Each check runs in a forked process with a directory, a time limit and a
memory limit of its own; its servers end with it.

Out of scope. They need a real model: prompts without a worked example, JSON fences of small models, a system prompt
that wins over tools, models in process for the command line and for lessons, threads and dtype of the learner, memory
over steps. They need Docker: the image's extras. They need minutes of training: `function-calling-tiny` on new seeds.
Not built yet: sampling and roots for MCP servers, lessons that wait for a person.
"""

from __future__ import annotations

import argparse
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
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENAI_API_KEY", "HF_HUB_OFFLINE"):
    os.environ[variable] = "1"
for variable in ("MIDSTREAM_TRUST", "MIDSTREAM_ADMIN_KEY"):
    os.environ.pop(variable, None)
sys.path[:0] = [str(Path(__file__).parents[1] / place) for place in ("tests", "plugins/midstream-web/tests")]

from midstream.cli.main import main as midstream  # noqa: E402
from support.llm_server import LLMServer, completion  # noqa: E402

Found = tuple[bool, object]
CHECKS: dict[str, Callable[[], Found]] = {}
FORK: Any = multiprocessing.get_context("fork")
LIMIT_S = 25.0  # of a check; most take a few seconds
MEMORY = 6 << 30
TASK = {"question": "6 * 7 ?", "answer": "42"}
PROBE = """
import json, os, urllib.request

def ask(session, text, **fields):
    body = {"model": session.model, "messages": [{"role": "user", "content": text}], **fields}
    request = urllib.request.Request(f"{session.base_url}/chat/completions", json.dumps(body).encode())
    request.add_header("authorization", f"Bearer {session.api_key}")
    try:
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)["choices"][0]["message"].get("content") or ""
    except urllib.error.HTTPError as refused:
        return f"{refused.code} {refused.read().decode()}"
"""


def check(group: str, name: str) -> Callable[[Callable[[], Found]], Callable[[], Found]]:
    """Add a check."""

    def add(made: Callable[[], Found]) -> Callable[[], Found]:
        CHECKS[f"{group:9} {name}"] = made
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


def openings(*bodies: Any) -> list[int]:
    """The statuses of openings at one server, in order."""
    with serving() as (address, _):
        return [ask(f"{address}/v1/sessions", body)[0] for body in bodies]


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


def parsed(text: str) -> Any:
    """The JSON value with which the output of a command begins."""
    return json.JSONDecoder().raw_decode(text)[0]


def evaluated(agent: str, *words: Any, rows: Any = (TASK,), reply: Any = lambda _: "<answer>42</answer>") -> Any:
    """`eval` on questions: exit code, what it prints, bodies that the model got, scores. `agent` may be code."""
    write("q.jsonl", list(rows))
    shutil.rmtree("run", ignore_errors=True)
    if "\n" in agent:
        agent = write("probe.py", PROBE + agent) + ":solve"
    with LLMServer(reply) as model:
        where = ("--base-url", model.base_url) * ("--model" in words) or ("--base-url", model.base_url, "--model", "m")
        code, said = cli("eval", agent, *where, "--tasks", "q.jsonl", "--out", "run", "--quiet", *words)
    shown = cli("show", "run", "--tasks", "--json")[1] if Path("run/evaluations.jsonl").exists() else "[]"
    return code, said, model.bodies, [row["score"] for row in (parsed(shown) if shown.startswith("[") else [])]


def tiny_training(*changes: str) -> list[str]:
    """The command of a tiny training of two steps in the directory `run`."""
    from conftest import TEN_STEPS
    from support.tiny_runs import TRAINING, settings

    write("ten.toml", TEN_STEPS)
    changed = [word for change in changes for word in ("--set", change)]
    return ["train", "ten.toml", *settings(TRAINING), *changed, "--set", "evaluation.at=none", "--out", "run"]


@contextmanager
def training(*changes: str) -> Iterator[subprocess.Popen[str]]:
    """A process that trains, once it has done two steps."""
    command = [sys.executable, "-m", "midstream.cli.main", *tiny_training(*changes), "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        metrics = Path("run/metrics.jsonl")
        while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 2):
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def problems(run: str) -> dict[str, str]:
    """What `verify` says of each file that it does not call whole."""
    return {
        one["file"]: one["problem"]
        for one in parsed(cli("show", run, "--check", "--json")[1])["files"]
        if one["problem"]
    }


def small_run(*words: str) -> Path:
    """A run directory of an evaluation without a model."""
    command = ["eval", "lessons-simulated", "--count", 2, "--set", "evaluation.temperatures=[0.0]"]
    code, said = cli(*command, "--out", "run", "--quiet", *words)
    assert code == 0, said
    return Path("run")


# -- borders -----------------------------------------------------------------------------------------------------------


@check("borders", "Surrogate in a session id")
def _() -> Found:
    found = openings(b'{"id":"\\ud800","task":{"question":"q","answer":"a"}}', {"id": "x", "task": TASK})
    return found == [400, 200], f"with half a pair, then another: {found}"


@check("borders", "Wrong task under a session id")
def _() -> Found:
    found = openings({"id": "x", "task": {"quest": 1}}, {"id": "x", "task": TASK})
    return found == [400, 200], f"a wrong task, then the right one: {found}"


@check("borders", "Task metadata that JSON cannot hold")
def _() -> Found:
    body = '{"id":"x","task":{"question":"q","answer":"a","metadata":{"a":%s}}}'
    found = openings(*((body % value).encode() for value in ("NaN", "1e999", '"\\udfff"', "1")))
    return found == [400, 400, 400, 200], f"NaN, 1e999, half a pair, 1: {found}"


@check("borders", "Foreign Host and Origin at the gateway")
def _() -> Found:
    with serving() as (address, _):
        session = opened(address)
        heads: tuple[dict[str, str], ...] = ({"Host": "evil.example:8321"}, {"Origin": "http://evil.example"}, {})
        url, key = f"{session['base_url']}/chat/completions", f"Bearer {session['key']}"
        body = {"model": "policy", "messages": [{"role": "user", "content": "q"}]}
        found = [ask(url, body, Authorization=key, **head)[0] for head in heads]
        return found == [403, 403, 200], f"Host, Origin, neither: {found}"


@check("borders", "Hundreds of half requests")
def _() -> Found:
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


@check("borders", "Content-Length with Transfer-Encoding")
def _() -> Found:
    with serving() as (address, _):
        port = int(address.rpartition(":")[2])
        head = f"Host: 127.0.0.1:{port}\r\n"
        both = "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=15) as connection:
            second = f"GET /healthz HTTP/1.1\r\n{head}\r\n"
            connection.sendall(f"POST /v1/sessions HTTP/1.1\r\n{head}{both}{second}".encode())
            answer = b"".join(iter(lambda: connection.recv(4096), b""))
        found = re.findall(r"HTTP/1.1 (\d+)", answer.decode())
        return found == ["400"], f"answers on one connection: {found}"


@check("borders", "Rewards that are no numbers")
def _() -> Found:
    with serving() as (address, _):
        session = opened(address)
        found = [end(session, answer="42", reward=reward) for reward in ("1", True, 0.5)]
        return found == [400, 400, 200], f'"1", true, 0.5: {found}'


@check("borders", "Ended session after a kill and a new start")
def _() -> Found:
    with serving() as (address, _):
        ended = end(opened(address, "mine"), answer="42")
    shown = cli("show", "run")[1]
    advice = re.findall(r"midstream (\w+)", shown)
    with serving() as (address, _):
        again = ask(f"{address}/v1/sessions", {"id": "mine", "task": TASK})[0]
    right = (ended, again) == (200, 409) and "serve" in advice and "resume" not in advice
    return right, f"ended {ended}, opened again {again}, show advises {sorted(set(advice))}"


@check("borders", "Limits of an agent whose sessions are served")
def _() -> Found:
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


@check("borders", "Sessions on an open host or a taken port")
def _() -> Found:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = (("--host", "0.0.0.0"), ("--port", taken.getsockname()[1]))
        said = [cli("serve", "own-agent", "--sessions", "--out", f"run{i}", *each)[1] for i, each in enumerate(words)]
    codes = [re.findall(r"error\[([\w-]+)\]", text) for text in said]
    right = codes == [["admin-key-missing"], ["address-taken"]] and "Traceback" not in "".join(said)
    return right, f"{codes}"


@check("borders", "Session that ends on a full disk")
def _() -> Found:
    with serving() as (address, process):
        session = opened(address)
        # No file may grow, as where no space is left.
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
        status = end(session, answer="42" * 10_000)
        said = process.communicate(timeout=15)[0]
    right = status == 500 and "Traceback" not in said and process.returncode == 1
    return right, f"end {status}, exit code {process.returncode}, {first(said[said.find('error[') :])}"


@check("borders", "Ctrl-C with 200 open sessions")
def _() -> Found:
    with serving() as (address, process):
        for number in range(200):
            opened(address, f"s{number}")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=20)[0]
        took = time.monotonic() - began
    return took < 4 and "Traceback" not in said, f"{took:.1f} s, exit code {process.returncode}"


@check("borders", "Quadratic scoring of long answers")
def _() -> Found:
    with serving() as (address, _):
        took = {}
        for number, piece in enumerate(("’a", "–a", "a’the’", "\0")):
            session = opened(address, f"s{number}", answer="a word")
            began = time.monotonic()
            answer = (piece * 5000)[:10_000] if piece != "\0" else piece * 150_000
            assert end(session, answer=answer) == 200
            took[piece] = round(time.monotonic() - began, 1)
    return max(took.values()) < 3, f"seconds for 10,000 characters: {took}"


@check("borders", "Address and redirect that no name decodes")
def _() -> Found:
    from page_server import FIXED, PageServer, head

    addresses, said = ["http://xn--/", "http://www.xn--/x", "http://a.xn--zzzzzzz-/"], []
    FIXED["/to"] = head(302, Location="http://xn--/")
    with PageServer() as site:
        table = {"url": site.url("/to"), "query": "x"}
        local = ("--set", f'tools.web_page={{type="web_page",allow_private=["127.0.0.1"],ports=[{site.port}]}}')
        for address in addresses:
            said.append(cli("call", "web_page", f"url={address}", "query=x", "--quiet"))
        said.append(cli("call", "web_page", json.dumps(table), "--quiet", *local))
        followed = "/to" in site.paths
    right = followed and all("Traceback" not in text and "not the address" in text for _, text in said)
    return right, f"exit codes {[code for code, _ in said]}, {first(said[-1][1])}"


@check("borders", "Broken address that a model visits")
def _() -> Found:
    call = '<tool_call>{"name": "web_page", "arguments": {"url": "http://xn--/", "query": "x"}}</tool_call>'
    reply = lambda body: "<answer>42</answer>" if len(body["messages"]) > 2 else call  # noqa: E731
    code, said, _, scores = evaluated("tool-calling", "--tools", "web_page", reply=reply)
    return (code, scores) == (0, [1]) and "Traceback" not in said, f"exit code {code}, scores {scores}, {first(said)}"


@check("borders", "Chat-template tokens in what a tool returns")
def _() -> Found:
    tokens = "<image> [SEP] <mask> <PRE> <EOT> <eom> <eod> <function_calls> <|im_start|>".split()
    write("mine.py", f"def lookup(key: str) -> str:\n    'Look up.'\n    return 'found {' '.join(tokens)}'\n")
    call = '<tool_call>{"name": "lookup", "arguments": {"key": "a"}}</tool_call>'
    reply = lambda body: "<answer>42</answer>" if "found" in str(body["messages"]) else call  # noqa: E731
    *_, bodies, _ = evaluated("tool-calling", "--tools", "mine.py:lookup", reply=reply)
    results = [str(message["content"]) for message in bodies[-1]["messages"] if "found" in str(message)]
    left = [token for token in tokens if token in "".join(results)]
    return bool(results) and not left, f"reach the model as they are: {left or 'none'}"


@check("borders", "Token budget with long tool calls or reasoning")
def _() -> Found:
    counts = []
    for field in ('"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": long}}]',
                  '"reasoning_content": long'):  # fmt: skip
        said = f'{{"role": "assistant", "content": "", {field}}}'
        agent = f"""
def solve(question, session):
    long = json.dumps({{"x": "9" * 100_000}})
    messages = [{{"role": "user", "content": "a"}}, {said}, {{"role": "user", "content": "b"}}]
    return ask(session, "", messages=messages)
"""
        *_, bodies, _ = evaluated(agent, "--budget", "20000 tokens")
        counts.append(sum(len(json.dumps(body["messages"])) // 4 for body in bodies))
    return max(counts) <= 20_000, f"tokens sent under a limit of 20,000: {counts}"


@check("borders", "Pipes and links to devices in a run directory")
def _() -> Found:
    from support.viewing import viewing

    run, read = small_run(), []
    with viewing(Path.cwd()) as client:
        part = client.get("run/run")["parts"][0]["name"]
        for name in ("run.json", "recipe.toml", "metrics.jsonl", "evaluations.jsonl"):
            for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
                kept = (run / name).rename("kept") if (run / name).exists() else None
                make(run / name)
                said = [cli(*words) for words in (("show", run), ("show", run, "--check"), ("view", run, "--file"))]
                read += [f"{text[:50]} {name}" for code, text in said if code == 0 or "error[file-damaged]" not in text]
                status = client.send(f"{client.base}api/run/run/part/{part}")[0]
                read += [f"the viewer's part: {status}"] * (name.endswith("s.jsonl") and status == 200)
                (run / name).unlink()
                if kept:
                    kept.rename(run / name)
    return not read, f"read: {read}" if read else "all refused by show, verify, report and the viewer"


@check("borders", "Metrics file of 1 GB")
def _() -> Found:
    run = small_run()
    with (run / "metrics.jsonl").open("wb") as file:
        file.truncate(1 << 30)
    tracemalloc.start()
    code, said = cli("show", run)
    peak = tracemalloc.get_traced_memory()[1] >> 20
    return peak < 100, f"show: exit code {code}, {peak} MB, {first(said)}"


@check("borders", "Links to other files: votes, a recipe in the report")
def _() -> Found:
    from support.pages import documents_of
    from support.viewing import viewing

    run = small_run()
    Path("target").write_bytes(b'{"a": 1}\n{"torn')
    Path("secret").write_text('secret = "s3cret"')
    with viewing(Path.cwd()) as client:
        part = client.get("run/run")["parts"][0]["name"]
        entry = client.get(f"run/run/part/{part}")["entries"][0]["id"]
        (run / "feedback.jsonl").symlink_to(Path("target").absolute())
        head = {"X-Midstream": "view", "Content-Type": "application/json"}
        vote = {"part": part, "id": entry, "vote": "up"}
        status = client.send(f"{client.base}api/run/run/feedback", method="POST", body=vote, headers=head)[0]
    (run / "recipe.toml").unlink()
    (run / "recipe.toml").symlink_to(Path("secret").absolute())
    page = Path("page.html")
    cli("view", run, "--file", page)
    shown = page.exists() and "s3cret" in json.dumps(documents_of(page))
    whole = Path("target").read_bytes() == b'{"a": 1}\n{"torn'
    right = whole and status >= 400 and not shown
    return right, f"vote {status}, its target whole: {whole}; recipe in the report: {shown}"


@check("borders", "Run directory whose name is not UTF-8")
def _() -> Found:
    from support.viewing import viewing

    os.rename(small_run(), b"b\xffd")
    with viewing(Path.cwd()) as client:
        status, _, body = client.send(f"{client.base}api/runs")
    return status == 200, f"list of runs: {status}, {len(json.loads(body)['runs'])} run"


@check("borders", "Emptied journal of a killed run")
def _() -> Found:
    with training("training.checkpoint_every=1", "training.steps=50") as process:
        process.kill()
    before = problems("run")
    Path("run/metrics.jsonl").write_bytes(b"")
    after = problems("run")
    changed = after.get("metrics.jsonl") != before.get("metrics.jsonl")
    return changed, f"metrics.jsonl: {before.get('metrics.jsonl')!r}, emptied: {after.get('metrics.jsonl')!r}"


@check("borders", "Code that came with a run or a recipe")
def _() -> Found:
    write("mine.py", "def right(answer, gold):\n    import near\n    return float(answer == gold)\n")
    write("near.py", "KEY = 'sk-secret'\n")
    run = small_run("--set", "reward.type=mine.py:right")
    copies = sorted(path.name for path in (run / "components").rglob("*.py"))
    status = json.loads((run / "status.json").read_text())
    write(str(run / "status.json"), json.dumps({**status, "state": "interrupted"}))
    os.mkdir("elsewhere")
    run.rename("elsewhere/run")
    ran, altered = Path("ran").absolute(), f"open({str(Path('ran').absolute())!r}, 'w').close()\n"
    [copy] = Path("elsewhere/run/components").rglob("mine.py")
    copy.write_text(altered + copy.read_text())
    Path("mine.py").rename("elsewhere/clone.py")
    write("elsewhere/clone.py", altered + Path("elsewhere/clone.py").read_text())
    write("elsewhere/r.toml", 'name = "r"\nextends = "direct"\nreward.type = "clone.py:right"\n')
    os.mkdir("here")
    os.chdir("here")
    said = [cli("resume", "../elsewhere/run")[1], cli("eval", "../elsewhere/r.toml", "--dry-run")[1]]
    codes = [re.findall(r"error\[([\w-]+)\]", text) for text in said]
    right = copies == ["mine.py"] and not ran.exists() and all(codes)
    return right, f"copied {copies}, imported: {ran.exists()}, resume and --dry-run: {codes}"


@check("borders", "Ctrl-C while a command is imported")
def _() -> Found:
    class Interrupts:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "midstream.cli.doctor":
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.meta_path.insert(0, Interrupts())  # type: ignore[arg-type]
    code, said = cli("doctor")
    return code == 130 and "Traceback" not in said, f"exit code {code}, {first(said)}"


# -- numbers -----------------------------------------------------------------------------------------------------------


@check("numbers", "Sampling that an agent asks for")
def _() -> Found:
    agent = "\ndef solve(question, session):\n    return ask(session, question, temperature=0.2, top_p=0.5, seed=5)\n"
    _, said, [body], _ = evaluated(agent, "--seed", 1)
    sent = {key: body.get(key) for key in ("temperature", "top_p", "seed", "max_tokens")}
    right = sent == {"temperature": 0.2, "top_p": 0.5, "seed": 5, "max_tokens": None}
    return right and "T=" not in said, f"sent {sent}, label {re.findall(r'sampling +(.*)', said)}"


@check("numbers", "Other fields of an agent's requests")
def _() -> Found:
    agent = """
def solve(question, session):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    fields = {"reasoning_effort": "low", "parallel_tool_calls": False, "x": {"y": 1}, "frequency_penalty": 0.5}
    ask(session, question, tools=[tool], tool_choice="required", **fields)
    return ask(session, question, n=2)
"""
    *_, bodies, _ = evaluated(agent)
    shown = cli("show", "run", "--tasks", "--json")[1]
    names = ("reasoning_effort", "parallel_tool_calls", "x", "frequency_penalty", "tool_choice")
    missing = [name for name in names if name not in bodies[0]]
    answer = parsed(shown)[0]["answer"]
    return not missing and '"param":"n"' in re.sub(r"\s", "", answer), f"missing: {missing}, n=2: {answer[:90]}"


@check("numbers", "Budget in dollars behind a proxy on loopback")
def _() -> Found:
    rows = [{"question": f"{i} ?", "answer": "42"} for i in range(20)]
    code, said, bodies, _ = evaluated("direct", "--model", "gpt-4o-mini", "--budget", "0.00001 usd", rows=rows)
    return len(bodies) < 2, f"{len(bodies)} of 20 requests, exit code {code}, {first(said)}"


@check("numbers", "Recipe's reward on questions of one's own")
def _() -> Found:
    write("mine.py", "def half(answer, gold): return 0.5\n")
    write("r.toml", 'name = "r"\nextends = "direct"\nreward.type = "mine.py:half"\n')
    rows = [{"question": "q", "answer": "red fox"}]
    sources = {
        "recipe": ["r.toml"],
        "--set f1": ["direct", "--set", "reward.type=f1"],
        "judge": ["direct", "--reward", "judge", "--set", "reward.engine=model"],
    }
    reply = lambda _: "<answer>red</answer>"  # noqa: E731
    found = {name: evaluated(*words, rows=rows, reply=reply) for name, words in sources.items()}
    scores = {name: [each if each is None else round(each, 2) for each in one[3]] for name, one in found.items()}
    right = (scores["recipe"], scores["--set f1"]) == ([0.5], [0.67]) and "setting-conflict" not in found["judge"][1]
    return right and len(found["judge"][2]) > 1, f"{scores}, {len(found['judge'][2])} requests with a judge"


@check("numbers", "Reward that returns a table, or is corrected")
def _() -> Found:
    rows = [{"question": f"{i} ?", "answer": "42"} for i in range(20)]
    write("mine.py", "def score(answer): return {'a': 1}\n")
    code, said, bodies, _ = evaluated("direct", "--reward", "mine.py:score", rows=rows)
    write("mine.py", "def score(answer): return 1 / len(answer[9:]) if answer else 0\n")
    _, _, asked, _ = evaluated("direct", "--reward", "mine.py:score", "--set", "rollout.concurrency=1", rows=rows)
    write("mine.py", "def score(answer): return 1.0\n")
    port = re.findall(r"127.0.0.1:(\d+)/", Path("run/recipe.toml").read_text())[0]
    with LLMServer(lambda _: "<answer>42</answer>", port=int(port)):
        resumed = cli("resume", "run", "--quiet")[0]
    seen = f"a table: {len(bodies)} requests; failures: {len(asked)} of 20; corrected: exit code {resumed}"
    return (code != 0, len(bodies), resumed) == (True, 0, 0) and len(asked) < 12, f"{seen}; {first(said)}"


@check("numbers", "Plan of what is refused, and of full cards")
def _() -> Found:
    kinds = [way["kind"] for way in parsed(cli("plan", "flow-grpo-lora", "--gpus", "8xH100", "--json")[1])["ways"]]
    full = []
    for recipe in ("agentflow-7b", "agentflow-7b-80gb", "search-r1-7b", "retool-7b"):
        for gpus in ("1xH100", "8xH100", "2xA100-40GB"):
            plan = parsed(cli("plan", recipe, "--gpus", gpus, "--json")[1])
            full += [way for way in plan["ways"] if way["fits"] and way["bytes"] / 2**30 > 0.97 * plan["gpu_gb"]]
    right = "verl" not in kinds and "tinker" not in kinds and not full
    return right, f"LoRA: {kinds}; full cards that fit: {len(full)}"


@check("numbers", "Turns that are all malformed")
def _() -> Found:
    call = '<tool_call>{"name": "nothing", "arguments": {}}</tool_call>'
    code, said, _, _ = evaluated("tool-calling", reply=lambda _: call)
    warned = [line for line in said.splitlines() if "warning" in line and "malformed" in line]
    return bool(warned), f"exit code {code}, {first(' '.join(warned))}"


@check("numbers", "Process for each run of a plain function")
def _() -> Found:
    rows = [{"question": f"{i} ?", "answer": f"pid {os.getpid()}"} for i in range(20)]
    agent = "\ndef solve(question, session):\n    return f'pid {os.getpid()}'\n"
    used = time.process_time() + sum(os.times()[2:4])
    *_, scores = evaluated(agent, rows=rows)
    used = time.process_time() + sum(os.times()[2:4]) - used
    return scores == [1] * 20 and used < 10, f"{scores.count(1)} of 20 runs in the process itself, {used:.1f} CPU-s"


@check("numbers", "Progress where nothing is a terminal")
def _() -> Found:
    lines = re.findall(r"^step (\d)/2", cli(*tiny_training("training.steps=2"))[1], re.MULTILINE)
    write("q.jsonl", [TASK])
    code = "import midstream as ms\n\nms.evaluate(ms.OwnAgent(lambda question: '42'), ms.tasks('q.jsonl').test)"
    done = subprocess.run([sys.executable, write("script.py", code)], capture_output=True, text=True, timeout=30)
    right = lines == ["1", "2"] and bool(done.stderr) and done.returncode == 0
    return right, f"steps {lines}; Python: {first(done.stderr)}"


@check("numbers", "Words that users type")
def _() -> Found:
    quiet, missing = ("train", "flow-grpo-tiny", "--dry-run", "--set"), []
    for typed, wanted in {
        (*quiet, "steps=5"): "training.steps",
        (*quiet, "training.algorithm=grpo"): "variant",
        (*quiet, "training.variant=gigpo"): "training.advantage",
        (*quiet, "training.variant=arpo"): "group_size",
        (*quiet, "training.variant=cispo"): "cispo",
        ("solve", "What", "is", "45", "plus", "17", "--quiet"): 'solve "What is 45 plus 17"',
        ("help",): "examples:",
        ("view", "--help"): "--host",
        ("call", "python", "--set", 'tools.python={type="python_coder", engine="model"}'): "query",
    }.items():
        if wanted not in cli(*typed)[1]:
            missing.append(typed[-1])
    bill = cli(*quiet[:-1])[1]
    missing += ["the bill first"] * (not bill.startswith("#") or bill.index("# ") > bill.index("seed ="))
    page = (Path(__file__).parents[1] / "docs/any-agent.md").read_text(encoding="utf-8")
    missing += ["pip install openai"] * ("pip install openai" not in page.split("```")[1])
    return not missing, f"not answered: {missing or 'none'}"


@check("numbers", "Lessons on 40 questions")
def _() -> Found:
    rows = [{"question": f"{i} + 1 ?", "answer": str(i + 1)} for i in range(40)]
    write("q.jsonl", rows)
    write("probe.py", PROBE + "\ndef solve(question, session):\n    return ask(session, question)\n")
    splits = "tasks.splits={train=0.2,validation=0.5,test=0.3}"
    said = cli("train", "probe.py:solve", "--model", "m", "--base-url", "http://127.0.0.1:9/v1", "--tasks", "q.jsonl",
               "--set", splits, "--dry-run")[1]  # fmt: skip
    refusal = said[said.find("error[") :] if "error[" in said else ""
    return not re.search(r"\bcount\b", refusal), first(refusal) + " / " + first(refusal[refusal.find("fix:") :])


@check("numbers", "Prefix of an MCP server's tools")
def _() -> Found:
    server = Path(__file__).parents[1] / "plugins/midstream-mcp/tests/mcp_servers/honest.py"
    command = json.dumps([sys.executable, str(server), "stdio"])
    shop = f'[tools.shop]\ntype = "mcp"\ncommand = {command}\nprefix = "shop"\n'
    write("r.toml", f'name = "r"\nextends = "tool-calling"\n{shop}')
    code, said = cli("call", "shop_add", '{"a": 1, "b": 2}', "--recipe", "r.toml", "--quiet")
    return (code, said.strip()) == (0, "3"), f"shop_add: exit code {code}, {first(said)}"


@check("numbers", "Evaluation of one checkpoint")
def _() -> Found:
    cli(*tiny_training("training.checkpoint_every=1"))
    words = ("--count", 2, "--out", "step", "--quiet", "--json")
    code, said = cli("eval", "run@1", *words)
    return code == 0, f"exit code {code}, {first(said)[:60]}"


@check("numbers", "Effects of lessons that were tested together")
def _() -> Found:
    from support.lesson_sessions import SMALL
    from support.tiny_runs import settings

    changed = {**SMALL, "tasks.rules": 6, "lessons.tasks": 12, "lessons.batch_size": 12}
    changed |= {"lessons.gate.test_pairs": 64}
    cli("train", "lessons-simulated", "--quiet", "--set", "evaluation.at=none", "--out", "run", *settings(changed))
    effects = [one["effect"] for one in json.loads(Path("run/lessons/lessons.json").read_text())["lessons"]]
    effects = [each for each in effects if each and each["bundle"]]
    bundles = {str(each["bundle"]): each["bundle"]["mean"] for each in effects}
    for each in effects:
        bundles[str(each["bundle"])] -= each["mean"]
    printed = "tested together" in cli("lessons", "show", "run")[1]
    right = bool(bundles) and printed and all(abs(off) < 1e-4 for off in bundles.values())
    return (
        right,
        f"{len(effects)} lessons in {len(bundles)} bundle, whose effect less theirs is {list(bundles.values())}",
    )


# -- rewards -----------------------------------------------------------------------------------------------------------

ANSWERS = [
    ("math", "42", "42 is wrong.", 0), ("math", "42", "It can't be 42.", 0), ("math", "42", "I ruled out 42.", 0),
    ("math", "42", "\\boxed{42}", 1), ("math", "3/4", "$\\mathbf{\\frac{3}{4}}$", 1),
    ("math", "11,\\! 111,\\! 111,\\! 100", "11111111100", 1), ("math", "28\\%", "$\\boxed{28}$ pct", 1),
    ("numeric", "5", "5 is wrong", 0), ("numeric", "5", "5 is incorrect.", 0), ("numeric", "5", "5", 1),
    ("numeric", "1984", "before 1984", 0), ("numeric", "1984", "after 1984", 0), ("numeric", "1984", "in 1984", 1),
    ("numeric", "0.5", "The final answer is $.5$.", 1), ("numeric", "0.5", "**Final Answer:** .5", 1),
    ("numeric", "0.5", "0,5", 1), ("numeric", "3.14", "3,14", 1),
    ("game24", "24", "6+6+6+6 > 24", 0), ("game24", "24", "6+6+6+6 or 6*6-6", 0), ("game24", "24", "6+6+6+6", 1),
    ("", "62", "45 + 17 = 62", 1), ("", "62", "45 + 17 = 63", 0),
]  # fmt: skip


@check("rewards", "Forms of answers")
def _() -> Found:
    rows = [
        {"question": f"Question {number}", "answer": gold, "numbers": [6, 6, 6, 6]} | ({"reward": rule} if rule else {})
        for number, (rule, gold, _, _) in enumerate(ANSWERS)
    ]
    write("answers.json", json.dumps({f"Question {number}": text for number, (_, _, text, _) in enumerate(ANSWERS)}))
    agent = f"\ndef solve(question):\n    return json.load(open({str(Path('answers.json').absolute())!r}))[question]\n"
    *_, scores = evaluated(agent, rows=rows)
    wrong = [(*case, score) for case, score in zip(ANSWERS, scores, strict=True) if score != case[-1]]
    return not wrong, f"{len(scores) - len(wrong)} of {len(scores)} as wanted; {wrong or ''}"


# -- training ----------------------------------------------------------------------------------------------------------


@check("training", "Step of uniform groups without a KL term")
def _() -> Found:
    import torch

    # The tiny model draws its rows of names again at each step.
    names = "model.embed_tokens.weight"
    write("mine.py", "def same(answer): return 1.0\n")
    code, _ = cli(*tiny_training("reward.type=mine.py:same", "training.loss.kl_coefficient=0", "training.steps=2"))
    paths = sorted(Path("run/checkpoints").glob("step-*/learner.pt"))
    models = [torch.load(path)["model"] for path in paths]
    kept = models[0].keys() - {names}
    equal = len(models) == 2 and all(torch.equal(models[0][name], models[1][name]) for name in kept)
    rows = [json.loads(line)["rows"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    return code == 0 and equal and rows == [0, 0], f"weights of both checkpoints equal: {equal}, rows {rows}"


@check("training", "SIGTERM before any checkpoint is due")
def _() -> Found:
    with training("training.checkpoint_every=25", "training.steps=500") as process:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    state = json.loads(Path("run/status.json").read_text())["state"]
    steps = Path("run/metrics.jsonl").read_bytes().count(b"\n")
    saved = max((int(path.name[-6:]) for path in Path("run/checkpoints").glob("step-*")), default=None)
    return (state, saved) == ("interrupted", steps), f"{state}, {steps} steps, checkpoint of step {saved}"


@check("training", "Weights of calls that continue one another")
def _() -> Found:
    from midstream.core.trajectory import Call, Score, Trajectory, Turn
    from midstream.training.rows import build_rows
    from midstream.training.settings import TrainingConfig

    def played(name: str, reward: float, *calls: tuple[tuple[int, ...], tuple[int, ...]]) -> Trajectory:
        turns = [
            Turn(index=i, calls=(Call(role="planner", prompt_ids=p, completion_ids=c, logprobs=(-0.5,) * len(c)),))
            for i, (p, c) in enumerate(calls, 1)
        ]
        return Trajectory(id=name, task_id="t", turns=tuple(turns), reward=Score(reward))

    group = [
        played("a", 1.0, ((1, 2), (3,)), ((1, 2, 3, 4), (5, 6, 7))),
        played("b", 0.0, ((1, 2), (9,)), ((1, 2, 8, 4), (5, 6, 7))),
    ]
    found = [round(row.weight, 4) for row in build_rows([group], TrainingConfig()).rows]
    return found == [0.25, 0.0833, 0.25, 0.0833], f"weights {found}"


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
            print(f"{name:60} {'ok   ' if right else 'WRONG'} {took:4.1f} s  {seen}", flush=True)
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
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the servers that it left
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
