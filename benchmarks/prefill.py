"""What a rollout's prefill takes: each distinct prefix once, against whole prompts padded to one length.

    python benchmarks/prefill.py                    # a model of 256 x 4, 800 and 2,000 static tokens; a few minutes
    python benchmarks/prefill.py --shapes demo      # the planner of flow-grpo-tiny, as a short warm start leaves it

Groups of 8 on one question each, three turns: a turn's prompts are the static tokens, the question, what each rollout
has in its memory so far and a short tail. "padded" computes every distinct prompt whole at every turn, "trie" what no
turn before it did, "chosen" what midstream chooses by itself. They take turns (A B A B ...) in one process on one
thread; medians of --repeats rollouts. "prefill" is the passes up to each reply's first token, "generate" all of
sampling; tokens are those that the passes run over, padding included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM
from update_shapes import SHORT, short_warm_start

from midstream.core.engine import Request
from midstream.core.seeds import derive_seed
from midstream.core.trajectory import Sampling
from midstream.engines.local import engine as transformers_local
from midstream.engines.local import prefill
from midstream.engines.local.engine import generate
from midstream.engines.local.prefill import Asked, NewTokens, Prefill, Prefilled
from midstream.recipe.build import Build
from midstream.recipe.schema import load_recipe
from midstream.recipe.sessions import parts_of
from midstream.rollout import rollout

GROUP, TURNS, QUESTION, MEMORY, TAIL, VOCABULARY = 8, 3, 50, 150, 10, 2000
Turns = list[Asked]  # the batches of one rollout


class Padded(Prefill):
    """As if there were no trie."""

    def __call__(self, model: PreTrainedModel, asked: Asked) -> Prefilled:
        return prefill.prefill_padded(model, asked)


class Trie(Prefill):
    """As if the trie always paid."""

    def __call__(self, model: PreTrainedModel, asked: Asked) -> Prefilled:
        self.prefixes.for_weights_of(model)
        new = NewTokens(list(dict.fromkeys(prompt for prompt, _ in asked)), self.prefixes)
        return self.by_trie(model, asked, new, "cascade")


WAYS: Mapping[str, Callable[[], Prefill]] = {"padded": Padded, "trie": Trie, "chosen": Prefill}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One way at one shape: medians."""

    shape: str
    way: str
    tokens: int
    prefill_s: float
    generate_s: float


# --- what is sampled --------------------------------------------------------------------------------------------------


def made_up(static: int, questions: int, reply: int) -> tuple[PreTrainedModel, Turns]:
    """A random model, and prompts of random tokens."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    config = Qwen2Config(vocab_size=VOCABULARY, num_key_value_heads=2, max_position_embeddings=8192, **sizes)
    rng = random.Random(0)

    def text(tokens: int) -> tuple[int, ...]:
        return tuple(rng.choices(range(2, VOCABULARY), k=tokens))

    shared, tail, turns = text(static), text(TAIL), []
    asked = [text(QUESTION) for _ in range(questions)]
    memories: list[tuple[int, ...]] = [()] * (questions * GROUP)
    for turn in range(TURNS):
        sampling = Sampling(max_tokens=reply)
        turns.append(
            [
                (shared + asked[i // GROUP] + memory + tail, _request(i, turn, sampling))
                for i, memory in enumerate(memories)
            ]
        )
        memories = [memory + text(MEMORY) for memory in memories]
    return Qwen2ForCausalLM(config).eval(), turns


def _request(order: int, turn: int, sampling: Sampling) -> Request:
    return Request(role="planner", seed=100 * order + turn, order=order, sampling=sampling)


def demo() -> tuple[PreTrainedModel, Turns]:
    """A step's rollouts of flow-grpo-tiny, as they come."""
    with Build(load_recipe("flow-grpo-tiny", SHORT)) as build:
        parts = parts_of(build)
        return parts.student.model, asyncio.run(_demo_turns(parts))


async def _demo_turns(parts: Any) -> Turns:
    seed = derive_seed("prefill benchmark")
    await short_warm_start(parts, seed)
    turns: Turns = []

    def recorded(model: PreTrainedModel, asked: Asked, **settings: Any) -> Any:
        turns.append(list(asked))
        return generate(model, asked, **settings)

    transformers_local.generate = recorded
    try:
        await rollout(parts.make_environment(), parts.source.sample("train", 16, seed), group_size=GROUP, seed=seed)
    finally:
        transformers_local.generate = generate
    return turns


# --- measuring --------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def prefilled(model: PreTrainedModel, turns: Turns, way: Prefill) -> int:
    """All turns' prefills; returns their tokens."""
    return sum(way(model, asked).computed for asked in turns)


def sampled(model: PreTrainedModel, turns: Turns, way: Prefill) -> int:
    """All turns' replies."""
    return sum(len(ids) for asked in turns for ids, _ in generate(model, asked, end_ids=(), prefill=way))


def measure(shape: str, model: PreTrainedModel, turns: Turns, repeats: int) -> list[Line]:
    """All ways, in turns."""
    took: dict[tuple[str, str], list[float]] = {}
    tokens = {name: prefilled(model, turns, make()) for name, make in WAYS.items()}
    for _ in range(repeats):
        for work in (prefilled, sampled):
            for name, make in WAYS.items():
                start = time.perf_counter()
                work(model, turns, make())
                took.setdefault((name, work.__name__), []).append(time.perf_counter() - start)
    return [
        Line(
            shape=shape,
            way=name,
            tokens=tokens[name],
            prefill_s=statistics.median(took[name, "prefilled"]),
            generate_s=statistics.median(took[name, "sampled"]),
        )
        for name in WAYS
    ]


def report(lines: Sequence[Line]) -> None:
    """Of one shape; ratios are to padded."""
    base = lines[0]
    for line in lines:
        ratios = f"{base.prefill_s / line.prefill_s:7.2f}x", f"{base.generate_s / line.generate_s:7.2f}x"
        print(
            f"{line.shape:14} {line.way:8}{line.tokens:9}"
            f"{line.prefill_s:11.3f}{ratios[0]}{line.generate_s:12.3f}{ratios[1]}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["800", "2000", "demo"], help="static tokens, or demo")
    parser.add_argument("--questions", type=int, default=1, help="groups at once")
    parser.add_argument("--reply", type=int, default=50, help="tokens sampled a reply")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'static tokens':14} {'way':8}{'tokens':>9}{'prefill s':>11}{'':8}{'generate s':>12}")
    lines: list[Line] = []
    for shape in arguments.shapes:
        found = demo() if shape == "demo" else made_up(int(shape), arguments.questions, arguments.reply)
        lines += measure(shape, *found, arguments.repeats)
        report(lines[-len(WAYS) :])
    if arguments.json:
        settings = {"questions": arguments.questions, "reply": arguments.reply, "repeats": arguments.repeats}
        print(json.dumps(settings | {"lines": [asdict(line) for line in lines]}))


if __name__ == "__main__":
    main()
