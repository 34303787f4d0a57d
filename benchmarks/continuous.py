"""Tokens per second of continuous batching, against waves that wait for their longest reply.

    python benchmarks/continuous.py                # 32 clients, 1 and 6 requests each; some minutes
    python benchmarks/continuous.py --rounds 6 --pause 2

Each client asks the engine `tiny_text` (the atlas's weights, float32) for one reply after another, of 8 to 128 tokens.
"waves" is `generate` on all clients' first requests, then on all second ones, as behind the barrier of a rollout;
"continuous" answers each client by itself. Both sample the same requests. They take turns (A B, B A, ...) in one
process; medians of --repeats. "reply" is how long a client waits for a reply, in the mean. Before each request but its
first a client pauses as if for a tool, 0 to twice --pause seconds; a wave begins when its last client is back.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from types import SimpleNamespace
from typing import Any

import torch

from midstream.core.engine import Request
from midstream.core.trajectory import Sampling
from midstream.engines.local.continuous import ContinuousLocal
from midstream.engines.local.engine import TransformersLocal, generate
from midstream.engines.local.prefill import Prefill
from midstream_worlds.tiny_text.settings import TinyTextConfig

Waves = list[list[Request]]
Taken = tuple[float, float]  # seconds in all, seconds a reply


def made_up(clients: int, rounds: int, shortest: int, longest: int) -> Waves:
    """Requests with prompts of 40 to 200 random tokens, which share none."""
    rng = random.Random(0)
    return [
        [
            Request(
                role="policy",
                prompt_ids=tuple(rng.choices(range(20, 1000), k=rng.randint(40, 200))),
                seed=rng.randrange(10**6),
                order=client,
                sampling=Sampling(max_tokens=rng.randint(shortest, longest)),
            )
            for client in range(clients)
        ]
        for _ in range(rounds)
    ]


def pause_of(request: Request, mean_s: float) -> float:
    """Seconds before a request."""
    return random.Random(request.seed).uniform(0, 2 * mean_s)


def in_waves(engine: TransformersLocal, waves: Waves, mean_s: float) -> Taken:
    """A wave begins when all clients of the one before it have paused."""
    start, prefill, replies = time.perf_counter(), Prefill(), []
    for number, wave in enumerate(waves):
        if number:
            time.sleep(max(pause_of(request, mean_s) for request in wave))
        began = time.perf_counter()
        asked = [(request.prompt_ids, request) for request in wave]
        generate(engine.model, asked, end_ids=(), decode=engine.codec.decode, prefill=prefill)
        replies.append(time.perf_counter() - began)
    return time.perf_counter() - start, statistics.fmean(replies)


async def continuously(engine: TransformersLocal, waves: Waves, mean_s: float) -> Taken:
    """Each client asks again when it is answered."""
    asking, replies = ContinuousLocal(engine), []

    async def client(requests: tuple[Request, ...]) -> None:
        for number, request in enumerate(requests):
            if number:
                await asyncio.sleep(pause_of(request, mean_s))
            began = time.perf_counter()
            await asking.sample(request)
            replies.append(time.perf_counter() - began)

    start = time.perf_counter()
    await asyncio.gather(*map(client, zip(*waves, strict=True)))
    taken = time.perf_counter() - start
    await asking.close()
    return taken, statistics.fmean(replies)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 6], help="requests of each client")
    parser.add_argument("--tokens", type=int, nargs=2, default=[8, 128], help="the shortest and the longest reply")
    parser.add_argument("--pause", type=float, default=0.0, help="mean seconds between a client's requests")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    context: Any = SimpleNamespace(name="policy", recipe=SimpleNamespace(warm_seed=0))
    engine = TinyTextConfig(weights="atlas", device=arguments.device).build(context)
    engine.codec.end_ids = ()  # every reply has its whole length
    asyncio.run(continuously(engine, made_up(2, 1, 8, 8), 0.0))  # whatever is made once
    print(f"{'requests':>8} {'tokens':>7} {'way':12}{'seconds':>9}{'tokens/s':>10}{'reply, s':>10}")
    for rounds in arguments.rounds:
        waves = made_up(arguments.clients, rounds, *arguments.tokens)
        tokens = sum(request.sampling.max_tokens for wave in waves for request in wave)
        ways = {
            "waves": lambda waves=waves: in_waves(engine, waves, arguments.pause),
            "continuous": lambda waves=waves: asyncio.run(continuously(engine, waves, arguments.pause)),
        }
        taken: dict[str, list[Taken]] = {way: [] for way in ways}
        for repeat in range(arguments.repeats):
            for way in list(ways)[:: 1 if repeat % 2 == 0 else -1]:
                taken[way].append(ways[way]())
        for way, each in taken.items():
            seconds, reply = (statistics.median(values) for values in zip(*each, strict=True))
            line = f"{seconds:9.2f}{tokens / seconds:10,.0f}{reply:10.2f}"
            print(f"{arguments.clients * rounds:8} {tokens:7,} {way:12}{line}")


if __name__ == "__main__":
    main()
