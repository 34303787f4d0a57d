"""Peers taking turns (A B A B, then B A B A), in one process: CPU seconds, wall-clock seconds, memory, gradients.

Memory on the CPU is the process's resident set at its peak (VmHWM, reset before each turn) beyond what it was before
the turn (Linux only); on a GPU what PyTorch had allocated at its peak, beyond what it had before.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import PreTrainedModel

TRL_MISSING = "TRL is not installed (pip install -e '.[train,bench]')"
Turn = Callable[[], float]  # one update of a peer; returns its loss


@dataclass
class Taken:
    """One peer's turns. `difference` is |gradient - first peer's| / |first peer's|, all parameters as one vector."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    process_mb: float = 0.0
    loss: float = 0.0
    difference: float = 0.0

    @property
    def cpu_s(self) -> float:
        """The median."""
        return statistics.median(self.cpu)

    @property
    def wall_s(self) -> float:
        """The median."""
        return statistics.median(self.wall)


def measure(
    turns: Mapping[str, Turn], model: PreTrainedModel, rounds: int, *, compared: int, warm: bool = False
) -> dict[str, Taken]:
    """Every peer once a round; the gradients of the first `compared` are compared. `warm`: one round before them."""
    names, taken = list(turns), {name: Taken() for name in turns}
    first: dict[str, torch.Tensor] = {}
    for number in range(-int(warm), rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            one = _turn(turns[name], model)
            if number < 0:
                continue
            kept = taken[name]
            kept.cpu += one.cpu
            kept.wall += one.wall
            kept.peak_mb, kept.process_mb = max(kept.peak_mb, one.peak_mb), max(kept.process_mb, one.process_mb)
            kept.loss = one.loss
            if number == 0 and name in names[:compared]:
                gradients = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
                first = first or {key: gradient.cpu().clone() for key, gradient in gradients.items()}
                kept.difference = _difference(gradients, first)
            print(f"  {name:12} {one.cpu[0]:9.2f} CPU s {one.wall[0]:9.2f} s {one.peak_mb:8.0f} MB", flush=True)
    model.zero_grad(set_to_none=True)
    return taken


def add_options(parser: argparse.ArgumentParser) -> None:
    """How often to measure, and where to write what was measured."""
    parser.add_argument("--rounds", type=_rounds, default=3)
    parser.add_argument("--json", type=_writable, help="write everything measured to this file")


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of rounds: at least 1")
    return int(text)


def _writable(text: str) -> Path:
    """Refused before anything is measured, not after."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a directory, or lies in none that exists")
    return path


def _turn(turn: Turn, model: PreTrainedModel) -> Taken:
    model.zero_grad(set_to_none=True)
    gc.collect()
    before_mb = _start_peak(model.device)
    wall, cpu = time.perf_counter(), time.process_time()
    loss = turn()
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    peak_mb = _peak_mb(model.device)
    return Taken([cpu], [wall], peak_mb - before_mb, peak_mb, loss)


def _start_peak(device: torch.device) -> float:
    """Megabytes held, from where on the peak counts."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 1e6
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status_mb("VmRSS")


def _peak_mb(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated() / 1e6 if device.type == "cuda" else _status_mb("VmHWM")


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(name + ":"))


def _difference(gradients: Mapping[str, torch.Tensor], first: Mapping[str, torch.Tensor]) -> float:
    if gradients.keys() != first.keys():
        raise SystemExit(f"parameters with a gradient differ: {sorted(gradients.keys() ^ first.keys())[:3]}")
    apart = sum((gradients[key].cpu() - own).double().square().sum().item() for key, own in first.items())
    whole = sum(own.double().square().sum().item() for own in first.values())
    return (apart / whole) ** 0.5
