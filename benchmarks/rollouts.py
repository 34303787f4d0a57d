"""Trajectories per second, CPU and memory of AgentFlow against a local server of set latency.

    python benchmarks/rollouts.py                        # 1, 8, 32, 64 and 256 at once, a few minutes
    python benchmarks/rollouts.py --concurrency 1000     # memory of a thousand rollouts at once

All four modules are prompted, three turns, ten requests one after another in a trajectory; the tool is trivial and in
process. The server is a process of its own that answers every request after --latency seconds with a reply of usual
size. "bound" is concurrency / (10 x latency): what a client that costs nothing would reach. "bare" sends the same bytes
over asyncio streams and looks at nothing in the replies; "openai" is the openai package's AsyncOpenAI with the same
bodies, if it is installed. They take turns (A B A B ...); medians of --repeats. CPU is the client process's alone.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from midstream.agents import prompted
from midstream.agents.agentflow import AgentFlow, LoopConfig
from midstream.core.protocols import ToolResult
from midstream.core.task import Task
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
    agent = AgentFlow(
        planner=prompted.PromptedPlanner(prompted.PlannerConfig()),
        executor=prompted.PromptedExecutor(prompted.ExecutorConfig()),
        verifier=prompted.PromptedVerifier(prompted.VerifierConfig()),
        generator=prompted.PromptedGenerator(prompted.PromptedConfig()),
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


async def measure(port: int, requests: list[bytes], concurrency: int, repeats: int, latency_s: float) -> list[Row]:
    """All clients at one concurrency, in turns."""
    env = environment(port, concurrency)
    clients: dict[str, Run] = {"midstream": lambda _, count: midstream(env, count), "bare": bare(port, requests)}
    if importlib.util.find_spec("openai"):
        clients["openai"] = openai_sdk(port, requests)
    count = max(8, concurrency * max(1, min(4, 512 // concurrency)))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in clients}
    rss_mb = dict.fromkeys(clients, 0.0)
    await midstream(env, concurrency)  # connections are opened, modules imported
    for _ in range(repeats):
        for name, run in clients.items():
            wall, cpu = time.perf_counter(), time.process_time()
            await run(concurrency, count)
            times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
            rss_mb[name] = rss_mb[name] or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    await env.close()
    bound = concurrency / (REQUESTS * latency_s)
    wall_s = {name: statistics.median(wall for wall, _ in taken) for name, taken in times.items()}
    return [
        Row(
            client=name,
            concurrency=concurrency,
            trajectories=count,
            per_s=count / wall_s[name],
            of_bound=count / wall_s[name] / bound,
            of_bare=wall_s["bare"] / wall_s[name],
            cpu_ms=1000 * statistics.median(cpu for _, cpu in taken) / count,
            peak_rss_mb=rss_mb[name],
        )
        for name, taken in times.items()
    ]


async def measure_all(port: int, arguments: argparse.Namespace) -> list[Row]:
    requests = await recorded_requests()
    titles = f"{'trajectories/s':>15}{'of bound':>10}{'of bare':>9}{'CPU ms each':>13}{'peak RSS MB':>13}"
    print(f"{'at once':>8} {'client':10}{titles}")
    rows: list[Row] = []
    for concurrency in arguments.concurrency:
        for row in await measure(port, requests, concurrency, arguments.repeats, arguments.latency):
            cells = f"{row.per_s:15.1f}{row.of_bound:10.1%}{row.of_bare:9.1%}{row.cpu_ms:13.2f}{row.peak_rss_mb:13.0f}"
            print(f"{concurrency:8} {row.client:10}{cells}", flush=True)
            rows.append(row)
    if not importlib.util.find_spec("openai"):
        print("openai is not installed: its row is left out")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32, 64, 256])
    parser.add_argument("--latency", type=float, default=0.05, help="seconds before each reply")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.latency, lambda port: print(port, flush=True)))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    command = [sys.executable, __file__, "--serve", "--latency", str(arguments.latency)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            rows = asyncio.run(measure_all(int(server.stdout.readline()), arguments))
        finally:
            server.kill()
    if arguments.json:
        found = {"latency_s": arguments.latency, "requests": REQUESTS, "repeats": arguments.repeats}
        print(json.dumps(found | {"rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
