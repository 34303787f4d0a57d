"""What a request through the gateway costs over the same request to the bare engine.

    python benchmarks/gateway.py                                            # a minute
    python benchmarks/gateway.py --peer-python OTHER/bin/python             # and the proxies that OTHER has

Each request is a chat of ten messages and two tools; its reply calls a tool and has 900 tokens of prompt and 60 sampled
ones with their log-probabilities, in no time. 20 requests are a session. The client is a process of its own, whose CPU
time is not counted; it sends the same bytes to every server, and looks at nothing in the replies.

    engine in process    the server asks an object; taken off: as many `engine.sample` without the gateway
    engine over HTTP     the server asks a trivial server by midstream's own client; taken off: this client alone
    agent-lightning      its LLM proxy, which records token ids and log-probabilities, in front of the trivial server
    litellm              LiteLLM's proxy, on which that one is built, in front of the trivial server
    trivial server       what client and loopback take: its latency is in all others'

"CPU ms" are of the server's process, a request; "over the engine" is what is left of it. Latency is measured with one
request at a time, requests per second with --concurrency at once. Rounds take turns; medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from midstream.components.agent_record import RunRecord
from midstream.core.agent import RunContext
from midstream.core.engine import Engine, Request
from midstream.core.trajectory import Call, Usage
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from midstream.gateway import chat_completions
from midstream.gateway.server import Gateway
from midstream.gateway.session import AgentSession
from midstream.gateway.settings import ServeConfig, SessionSettings
from support.flaky_server import Connection

SESSION = 20  # requests of one session
PROMPT, REPLY = tuple(range(900)), tuple(range(60))
LOGPROBS = tuple(-0.01 * place for place in REPLY)
WORDS = "The archive lists the height of the place as 105 and names the survey that measured it. "
CALL = {"name": "search", "arguments": {"text": "height of the place", "top_k": 3}}
TEXT = f"<think>{WORDS * 2}</think>\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>"
WANTED_MS = 2.0
SERVERS = ("trivial server", "engine in process", "engine over HTTP")
PEERS = ("agent-lightning", "litellm")


def tool(name: str) -> dict[str, Any]:
    """A tool in the form of chat completions."""
    properties = {"text": {"type": "string", "description": WORDS}, "top_k": {"type": "integer", "minimum": 1}}
    parameters = {"type": "object", "properties": properties, "required": ["text"]}
    return {"type": "function", "function": {"name": name, "description": WORDS, "parameters": parameters}}


def request_body(number: int) -> dict[str, Any]:
    """A request with ten messages: instructions, a question, four tool calls with their answers."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": WORDS * 8},
        {"role": "user", "content": f"How high is Place{number}, and who says so?"},
    ]
    for turn in range(4):
        function = {"name": "search", "arguments": json.dumps(CALL["arguments"])}
        made = {"id": f"call{turn:05}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": WORDS, "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": made["id"], "content": WORDS * 4})
    return {"model": "policy", "messages": messages, "tools": [tool("search"), tool("calculate")]}


def completion() -> bytes:
    """The trivial server's reply, in vLLM's form."""
    message = {"role": "assistant", "content": TEXT}
    logprobs = {"content": [{"token": "x", "bytes": None, "logprob": value, "top_logprobs": []} for value in LOGPROBS]}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": logprobs, "token_ids": REPLY}
    usage = {"prompt_tokens": len(PROMPT), "completion_tokens": len(REPLY), "total_tokens": len(PROMPT + REPLY)}
    made = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "policy", "choices": [choice]}
    return json.dumps(made | {"usage": usage, "prompt_token_ids": PROMPT}).encode()


class Scripted(Engine):
    """An engine that has its reply ready."""

    name, token_exact = "scripted", True

    async def sample(self, request: Request) -> Call:
        usage = Usage(prompt_tokens=len(PROMPT), completion_tokens=len(REPLY))
        return request.answered(
            self.name, TEXT, prompt_ids=PROMPT, completion_ids=REPLY, logprobs=LOGPROBS, finish_reason="stop",
            usage=usage,
        )  # fmt: skip


# --- servers: each prints its address; then, for a line "begin N", the paths of N requests; "end": CPU seconds --------


async def lines() -> AsyncGenerator[list[str]]:
    """The lines of the input; reading them takes no time of the loop."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield line.split()


async def trivial_server() -> None:
    """Answer anything with the same bytes."""
    reply = completion()
    loop = asyncio.get_running_loop()
    serving = await loop.create_server(
        lambda: Connection(lambda connection, head, body: connection.send(200, reply)), "127.0.0.1", 0, backlog=4096
    )
    say(f"http://127.0.0.1:{serving.sockets[0].getsockname()[1]}/v1")
    async for _ in lines():
        say(time.process_time())


async def midstream_server(upstream: str) -> None:
    """The gateway over an engine. "begin N" opens the sessions of N requests, "end" ends them, "bare N" asks alone."""
    engine: Engine = Scripted()
    if upstream:
        config = OpenAIConfig(model="policy", base_url=upstream, token_ids=True, max_concurrency=64)
        engine = OpenAICompatibleEngine(config, "server")
    asked = chat_completions.read(request_body(0))
    gateway = Gateway(ServeConfig())
    gateway.start()
    say(f"{gateway.address}/v1")
    sessions, stack = list[AgentSession](), AsyncExitStack()
    async for command, *count in lines():
        if command == "begin":
            context = RunContext(engines={"policy": engine}, seed=1)
            sessions = [AgentSession(gateway, context, SessionSettings()) for _ in range(int(count[0]) // SESSION)]
            keys = [await stack.enter_async_context(gateway.serving(session)) for session in sessions]
            say(time.process_time(), *keys)
        elif command == "end":
            records = [RunRecord() for _ in sessions]
            for session, record in zip(sessions, records, strict=True):
                await session.end(record)
            await stack.aclose()
            if any(len(record.turns) != SESSION for record in records):
                raise SystemExit("a session went wrong")
            say(time.process_time())
        else:
            before = time.process_time()
            for _ in range(int(count[0])):
                await engine.sample(Request(role="policy", messages=asked.messages, tools=asked.tools))
            say(time.process_time() - before)
    await engine.close()


def say(*values: object) -> None:
    """To the process that started this one."""
    print(*values, flush=True)


# --- the client -------------------------------------------------------------------------------------------------------


async def client(url: str) -> None:
    """For each line "CONCURRENCY COUNT KEYS...": send COUNT requests, and print seconds and all latencies."""
    host, _, rest = url.removeprefix("http://").partition("/")
    address, _, port = host.partition(":")

    async def worker(requests: Iterator[bytes], latencies: list[float]) -> None:
        reader, writer = await asyncio.open_connection(address, int(port))
        for request in requests:
            began = time.perf_counter()
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
            latencies.append(time.perf_counter() - began)
            if b" 200 " not in head.split(b"\r\n")[0]:
                raise SystemExit(f"{url} answered {head!r}")
        writer.close()

    async for concurrency, count, *keys in lines():
        requests = []
        for number in range(int(count)):
            body = json.dumps(request_body(number)).encode()
            key = keys[number // SESSION] if keys else "none"
            head = f"POST /{rest}/chat/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            requests.append(head.encode() + body)
        latencies: list[float] = []
        began, shared = time.perf_counter(), iter(requests)
        await asyncio.gather(*(worker(shared, latencies) for _ in range(int(concurrency))))
        say(json.dumps([time.perf_counter() - began, latencies]))


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Row:
    """One server: medians over rounds. `over_engine_ms` is None for a peer, which has no engine of its own."""

    server: str
    cpu_ms: float
    over_engine_ms: float | None
    per_s: float
    p50_ms: float
    p95_ms: float


@contextmanager
def process(*command: str) -> Iterator[Callable[..., list[str]]]:
    """A process that answers each line with a line; called with no words, it reads alone."""
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdin
        assert started.stdout
        stdin, stdout = started.stdin, started.stdout

        def ask(*words: object) -> list[str]:
            if words:
                print(*words, file=stdin, flush=True)
            line = stdout.readline()
            if not line:
                raise SystemExit(f"{' '.join(command)} ended")
            return line.split() if not line.startswith("[") else [line]

        try:
            yield ask
        finally:
            stdin.close()


def measured(name: str, server: Callable, client: Callable, arguments: argparse.Namespace) -> dict[str, float]:
    """One round of one server: throughput and CPU with many requests at once, latency with one at a time."""
    cpu, *keys = server("begin", arguments.count)
    seconds, _ = json.loads(client(arguments.concurrency, arguments.count, *keys)[0])
    taken = 1000 * (float(server("end")[0]) - float(cpu)) / arguments.count
    found = {"cpu_ms": taken, "per_s": arguments.count / seconds}
    _, *keys = server("begin", arguments.alone)
    _, latencies = json.loads(client(1, arguments.alone, *keys)[0])
    server("end")
    cuts = statistics.quantiles([1000 * one for one in latencies], n=20)
    found |= {"p50_ms": cuts[9], "p95_ms": cuts[18]}
    if name in SERVERS[1:]:
        found["over_engine_ms"] = taken - 1000 * float(server("bare", arguments.count)[0]) / arguments.count
    return found


def measure_all(arguments: argparse.Namespace) -> list[Row]:
    """All servers, in turns."""
    with ExitStack() as stack:
        servers: dict[str, Callable] = {}
        clients: dict[str, Callable] = {}

        def add(name: str, *command: str) -> str:
            servers[name] = stack.enter_context(process(*command))
            [url] = servers[name]()
            clients[name] = stack.enter_context(process(sys.executable, __file__, "--client", url))
            return url

        upstream = add(SERVERS[0], sys.executable, __file__, "--serve", SERVERS[0])
        add(SERVERS[1], sys.executable, __file__, "--serve", SERVERS[1])
        add(SERVERS[2], sys.executable, __file__, "--serve", SERVERS[2], "--upstream", upstream)
        for name in arguments.peers if arguments.peer_python else ():
            script = str(Path(__file__).with_name("gateway_peers.py"))
            add(name, str(arguments.peer_python), script, name, upstream)
        rounds: list[dict[str, dict[str, float]]] = []
        for number in range(-1, arguments.rounds):  # the first is not counted: connections, imports
            names = list(servers) if number % 2 else list(servers)[::-1]
            one = {name: measured(name, servers[name], clients[name], arguments) for name in names}
            rounds += [one] if number >= 0 else []
    rows = []
    for name in servers:
        taken = [one[name] for one in rounds]
        medians = {key: statistics.median(one[key] for one in taken) for key in taken[0]}
        rows.append(Row(server=name, **{"over_engine_ms": None, **medians}))  # type: ignore[arg-type]
    return rows


def table(rows: Sequence[Row]) -> str:
    """In Markdown; latencies also as what they add to the trivial server's."""
    titles = ["server", "CPU ms", "over the engine", "requests/s", "p50 ms", "p95 ms", "p50 added", "p95 added"]
    floor = rows[0]
    found = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for row in rows:
        over = "" if row.over_engine_ms is None else f"{row.over_engine_ms:.2f}"
        cells = [row.server, f"{row.cpu_ms:.2f}", over, f"{row.per_s:.0f}", f"{row.p50_ms:.2f}", f"{row.p95_ms:.2f}"]
        cells += [f"{row.p50_ms - floor.p50_ms:.2f}", f"{row.p95_ms - floor.p95_ms:.2f}"]
        found.append("| " + " | ".join(cells) + " |")
    return "\n".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="requests of a round, whole sessions of 20")
    parser.add_argument("--alone", type=int, default=400, help="of these, one at a time, for the latency")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-python", type=Path, help="the Python of an environment with the peers")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--upstream", default="", help=argparse.SUPPRESS)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.count % SESSION or arguments.alone % SESSION:
        parser.error(f"--count and --alone are multiples of {SESSION}")
    if arguments.client:
        asyncio.run(client(arguments.client))
    elif arguments.serve:
        own = arguments.serve != SERVERS[0]
        asyncio.run(midstream_server(arguments.upstream) if own else trivial_server())
    else:
        rows = measure_all(arguments)
        print(table(rows))
        if arguments.json:
            kept = {"count": arguments.count, "concurrency": arguments.concurrency, "rounds": arguments.rounds}
            print(json.dumps(kept | {"wanted_ms": WANTED_MS, "cores": os.cpu_count(), "rows": [*map(asdict, rows)]}))


if __name__ == "__main__":
    main()
