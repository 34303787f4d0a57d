"""Trajectories per second, CPU and memory of AgentFlow against a local server of set latency.

    python benchmarks/rollouts.py                                  # 1, 8, 32, 64 and 256 at once, a few minutes
    python benchmarks/rollouts.py --concurrency 1000 --no-openai   # memory of a thousand rollouts at once
    python benchmarks/rollouts.py --peer ../before/src             # and the midstream of another checkout

All four modules are prompted, three turns, ten requests one after another in a trajectory; the tool is trivial and in
process. The server is a process of its own that answers every request after --latency seconds with a reply of usual
size. "bound" is concurrency / (10 x latency): what a client that costs nothing would reach. "bare" sends the same bytes
over asyncio streams and looks at nothing in the replies; "openai" is the openai package's AsyncOpenAI with the same
bodies, if it is installed. Each client is a process of its own; they take turns (A B A B ...); medians of --repeats.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from midstream.agents import prompted
from midstream.agents.agentflow import AgentFlowLoop, LoopConfig
from midstream.core.task import Task
from midstream.core.tool import ToolResult
from midstream.engines.openai.engine import OpenAICompatibleEngine, OpenAIConfig
from midstream.rewards.exact_match import ExactMatch
from midstream.rollout import Environment, RolloutConfig, rollout
from support.flaky_server import Connection

TURNS, REQUESTS = 3, 10
WORDS = "The archive lists the height of the place as 105 and names the survey that measured it. "
REPLIES = {
    b"# Planner": f"Justification: {WORDS * 2}\nContext: {WORDS * 4}\nSub-Goal: {WORDS}\nTool Name: archive",
    b"# Executor": json.dumps({"text": WORDS}),
    b"# Verifier": json.dumps({"analysis": WORDS * 5, "result_valid": True, "memory_sufficient": False}),
    b"# Generator": f"{WORDS * 2}<answer>105</answer>",
}
Run = Callable[[int, int], Awaitable[None]]  # (trajectories at once, trajectories in all)


class Archive:
    """A tool that costs nothing."""

    name, description, timeout_s, output_tokens = "archive", "knows the heights of places", 30.0, 1000
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "what to look up"}},
        "required": ["text"],
    }

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        return ToolResult(text=WORDS * 6)

    async def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Row:
    """One client at one concurrency: medians over repeats."""

    client: str
    concurrency: int
    trajectories: int
    per_s: float
    of_bound: float
    of_bare: float
    cpu_ms: float
    peak_rss_mb: float


# --- the server -------------------------------------------------------------------------------------------------------


async def serve(latency_s: float, port_known: Callable[[int], None], seen: Callable[[bytes], object] = len) -> None:
    """Answer until cancelled."""
    replies = {mark: chat_completion(text) for mark, text in REPLIES.items()}
    loop = asyncio.get_running_loop()

    def handle(connection: Connection, head: bytes, body: bytes) -> None:
        seen(head + b"\r\n\r\n" + body)
        answer = next(reply for mark, reply in replies.items() if mark in body)
        loop.call_later(latency_s, send, connection, answer)

    def send(connection: Connection, answer: bytes) -> None:
        if not connection.lost:
            connection.send(200, answer)

    server = await loop.create_server(lambda: Connection(handle), "127.0.0.1", 0, backlog=4096)
    port_known(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def chat_completion(text: str) -> bytes:
    """The body of a good answer."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 900, "completion_tokens": len(text) // 4, "total_tokens": 900 + len(text) // 4}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    made = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return json.dumps(made | {"usage": usage}).encode()


# --- the clients ------------------------------------------------------------------------------------------------------


def environment(port: int, concurrency: int) -> Environment:
    """AgentFlow, all four modules on one engine."""
    settings = OpenAIConfig(model="m", base_url=f"http://127.0.0.1:{port}/v1", max_concurrency=concurrency)
    engine = OpenAICompatibleEngine(settings, "server")
    agent = AgentFlowLoop(
        planner=prompted.PromptedPlanner(prompted.PlannerConfig()),
        executor=prompted.PromptedExecutor(prompted.ExecutorConfig()),
        verifier=prompted.PromptedVerifier(prompted.VerifierConfig()),
        generator=prompted.PromptedGenerator(prompted.GeneratorConfig()),
        config=LoopConfig(max_turns=TURNS),
    )
    return Environment(
        agent=agent,
        tools=(Archive(),),
        engines=dict.fromkeys(("planner", "executor", "verifier", "generator"), engine),
        reward=ExactMatch(),
        config=RolloutConfig(concurrency=concurrency),
    )


async def midstream(env: Environment, count: int) -> None:
    """Whole rollouts; a trajectory that did not come out as it must ends the benchmark."""
    tasks = [Task(id=f"t{i}", question=f"How high is Place{i}, and who says so ?", answer="105") for i in range(count)]
    for group in await rollout(env, tasks, seed=1):
        [one] = group.trajectories
        if one.reward is None or one.reward.value != 1 or len(one.calls) != REQUESTS:
            raise SystemExit(f"a trajectory went wrong: {one.error or one}")


async def recorded_requests() -> list[bytes]:
    """The ten requests of one trajectory, as midstream sends them."""
    requests: list[bytes] = []
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(0.0, port.set_result, requests.append))
    env = environment(await port, 1)
    await midstream(env, 1)
    await env.close()
    server.cancel()
    return requests


def bare(port: int, requests: list[bytes]) -> Run:
    """The same bytes over keep-alive connections, one a worker."""

    async def worker(count: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in requests * count:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
        writer.close()
        await writer.wait_closed()

    async def run(concurrency: int, count: int) -> None:
        await asyncio.gather(*(worker(count // concurrency) for _ in range(concurrency)))

    return run


def openai_sdk(port: int, requests: list[bytes]) -> Run:
    """The same bodies through the openai package."""
    import openai  # type: ignore[import-not-found]

    bodies = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in requests]
    client = openai.AsyncOpenAI(api_key="none", base_url=f"http://127.0.0.1:{port}/v1")

    async def worker(count: int) -> None:
        for body in bodies * count:
            await client.chat.completions.create(**body)

    async def run(concurrency: int, count: int) -> None:
        await asyncio.gather(*(worker(count // concurrency) for _ in range(concurrency)))

    return run


# --- measuring --------------------------------------------------------------------------------------------------------


def work(client: str, port: int) -> None:
    """A client's process: for each line "CONCURRENCY COUNT" of its input, print seconds, CPU seconds, peak RSS."""
    with asyncio.Runner() as runner:
        env: Environment | None = None
        peer = None
        if client != "midstream":
            peer = {"bare": bare, "openai": openai_sdk}[client](port, runner.run(recorded_requests()))
        for line in sys.stdin:
            concurrency, count = map(int, line.split())
            if peer:
                run = peer(concurrency, count)
            else:
                if env is None or env.config.concurrency != concurrency:
                    env = environment(port, concurrency)
                run = midstream(env, count)
            wall, cpu = time.perf_counter(), time.process_time()
            runner.run(run)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            print(wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, flush=True)


@contextmanager
def process_of(name: str, port: int, source: Path | None) -> Iterator[Callable[[int, int], list[float]]]:
    """A client's process, with midstream from `source` if given: called with concurrency and count, it measures."""
    environment = dict(os.environ) | ({"PYTHONPATH": str(source.resolve())} if source else {})
    client = "midstream" if name == "peer" else name
    command = [sys.executable, __file__, "--client", client, "--port", str(port)]
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        stdin, stdout = process.stdin, process.stdout

        def measured(concurrency: int, count: int) -> list[float]:
            print(concurrency, count, file=stdin, flush=True)
            return [float(number) for number in stdout.readline().split()]

        try:
            yield measured
        finally:
            stdin.close()


def measure_all(port: int, arguments: argparse.Namespace) -> list[Row]:
    """All clients at each concurrency, in turns."""
    names = ["midstream", *(["peer"] if arguments.peer else []), "bare"]
    if not importlib.util.find_spec("openai"):
        print("openai is not installed: its row is left out")
    elif not arguments.no_openai:
        names.append("openai")
    titles = f"{'trajectories/s':>15}{'of bound':>10}{'of bare':>9}{'CPU ms each':>13}{'peak RSS MB':>13}"
    print(f"{'at once':>8} {'client':10}{titles}")
    rows: list[Row] = []
    for concurrency in arguments.concurrency:
        count = max(8, concurrency * max(1, min(4, 512 // concurrency)))
        bound = concurrency / (REQUESTS * arguments.latency)
        with ExitStack() as stack:
            clients = {
                name: stack.enter_context(process_of(name, port, arguments.peer if name == "peer" else None))
                for name in names
            }
            for client in clients.values():
                client(concurrency, concurrency)  # connections are opened, modules imported
            taken = [{name: client(concurrency, count) for name, client in clients.items()}
                     for _ in range(arguments.repeats)]  # fmt: skip
        medians = {name: [statistics.median(part) for part in zip(*(turn[name] for turn in taken), strict=True)]
                   for name in names}  # fmt: skip
        for name, (wall_s, cpu_s, rss_mb) in medians.items():
            row = Row(
                client=name,
                concurrency=concurrency,
                trajectories=count,
                per_s=count / wall_s,
                of_bound=count / wall_s / bound,
                of_bare=medians["bare"][0] / wall_s,
                cpu_ms=1000 * cpu_s / count,
                peak_rss_mb=rss_mb,
            )
            cells = f"{row.per_s:15.1f}{row.of_bound:10.1%}{row.of_bare:9.1%}{row.cpu_ms:13.2f}{row.peak_rss_mb:13.0f}"
            print(f"{concurrency:8} {row.client:10}{cells}", flush=True)
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32, 64, 256])
    parser.add_argument("--latency", type=float, default=0.05, help="seconds before each reply")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--peer", type=Path, help="the src of another checkout, whose midstream is measured too")
    parser.add_argument("--no-openai", action="store_true", help="leave out the openai package, which takes longest")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.latency, lambda port: print(port, flush=True)))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if arguments.client:
        work(arguments.client, arguments.port)
        return
    command = [sys.executable, __file__, "--serve", "--latency", str(arguments.latency)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            rows = measure_all(int(server.stdout.readline()), arguments)
        finally:
            server.kill()
    if arguments.json:
        found = {"latency_s": arguments.latency, "requests": REQUESTS, "repeats": arguments.repeats}
        print(json.dumps(found | {"rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
