"""Compare the numbers of two runs of one recipe: `python scripts/same_numbers.py RUN OTHER`.

Use it before and after a change that must not change results: metrics, evaluations and updates of the lessons have to
be equal, byte for byte but for names that were changed since (`RENAMED`). Timings, prices of requests and the command
line differ from run to run and are not compared. Exits with 1 if anything differs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FILES = ("metrics.jsonl", "evaluations.jsonl", "updates.jsonl")
RENAMED = {"optimiser": "reflector"}  # words: allow
MODELS = {"simulated": "reflector"}  # a simulated model was named by its server
LEFT_OUT = {"time_s", "duration_s", "elapsed_s", "created_at", "checksum"}
# Counts that are no longer written.
LEFT_OUT |= {"errors_followed", "recoveries", "recovery_rate", "repeats", "repeat_rate"}


def records(path: Path) -> list[Any]:
    """The lines of a file as values, with today's names, without times and checksums."""

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {RENAMED.get(key, key): renamed(inner) for key, inner in value.items() if key not in LEFT_OUT}
            return kept | ({"model": MODELS.get(kept["model"], kept["model"])} if "model" in kept else {})
        return [renamed(inner) for inner in value] if isinstance(value, list) else value

    return [renamed(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def main(first: Path, second: Path) -> int:
    """Print what is equal and what differs; returns the exit code."""
    differs = 0
    for name in FILES:
        paths = [run / name for run in (first, second)]
        present = [path.is_file() for path in paths]
        if not any(present):
            continue
        if all(present) and paths[0].read_bytes() == paths[1].read_bytes():
            print(f"{name}: equal, byte for byte")
            continue
        ours, theirs = (records(path) if path.is_file() else [] for path in paths)
        if ours == theirs:
            print(f"{name}: equal but for renamed keys, times and checksums")
            continue
        differs = 1
        pairs = enumerate(zip(ours, theirs, strict=False), start=1)
        place = next((number for number, (one, other) in pairs if one != other), min(len(ours), len(theirs)) + 1)
        print(f"{name}: DIFFERENT from line {place} on ({len(ours)} and {len(theirs)} lines)")
    return differs


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:3])))
