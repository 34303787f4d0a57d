"""How fast this machine is, measured: for plans of runs on a CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import process_time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

_ROWS, _TOKENS = 8, 128  # of a pass
_COPIED = 2**25  # numbers
_REPEATS = 5
_NARROW = 16  # a model whose products cost nothing


def measured(threads: int, width: int) -> tuple[float, float, float]:
    """(operations a second, bytes a second, seconds of a layer in one decoding step), float32 on `threads` threads.

    Operations are those of the products of a decoder's layer of this `width`; its other work slows them down, so
    narrow models have fewer. Measured is CPU time, so that other work of the machine does not count.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        layer_s = (_pass(width, 3, _TOKENS) - _pass(width, 1, _TOKENS)) / 2
        operations = 2 * _ROWS * _TOKENS * (4 * width * width + 3 * width * 3 * width)
        numbers, copy = torch.ones(_COPIED), torch.zeros(_COPIED)
        moved_s = _fastest(lambda: copy.copy_(numbers))
        step_s = (_pass(_NARROW, 9, 1) - _pass(_NARROW, 1, 1)) / 8
    finally:
        torch.set_num_threads(before)
    # The clock is coarse: a difference of two measurements is never 0.
    return operations / max(layer_s, 1e-6), 8 * _COPIED / max(moved_s, 1e-6), max(step_s, 1e-6)


def memory_gb() -> float:
    """GB (2^30 bytes) of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


@torch.no_grad()
def _pass(width: int, layers: int, tokens: int) -> float:
    """Seconds of one forward pass over rows of `tokens`."""
    config = LlamaConfig(
        vocab_size=32, hidden_size=width, num_hidden_layers=layers, num_attention_heads=max(1, width // 32),
        intermediate_size=3 * width,
    )  # fmt: skip
    model, ids = LlamaForCausalLM(config).eval(), torch.zeros(_ROWS, tokens, dtype=torch.long)
    return _fastest(lambda: model(ids, use_cache=True))


def _fastest(work: Callable[[], object]) -> float:
    """CPU seconds a thread of the fastest of several runs, after one to warm up."""
    times = list[float]()
    for _ in range(1 + _REPEATS):
        start = process_time()
        work()
        times.append(process_time() - start)
    return min(times[1:]) / torch.get_num_threads()
