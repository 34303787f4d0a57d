"""Kill a writing child with signal 9 at random moments; everything that it confirmed must be there, whole.

Run as a script: python kill_nine.py checkpoint|journal DIRECTORY KILLS. It forks its children so that one start-up
serves all. Prints how many writes were confirmed.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from midstream.runs.checkpoint import Checkpoints
from midstream.runs.journal import Journal, read_records


def fill(step: int) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        for name in ("a", "b", "c"):
            with (directory / name).open("wb") as file:
                for _ in range(8):
                    file.write(b"%09d\n" % step * 500)

    return write


def read(directory: Path) -> set[bytes]:
    return {line for name in "abc" for line in (directory / name).read_bytes().splitlines()}


def save_forever(root: Path, step: int) -> Iterator[int]:
    while True:
        step += 1
        Checkpoints(root).save(step, fill(step))
        yield step


def last_saved(root: Path) -> int:
    loaded = Checkpoints(root).load_latest(read)
    if loaded is None:
        return 0
    assert loaded[1] == {b"%09d" % loaded[0]}, loaded
    return loaded[0]


def append_forever(root: Path, step: int) -> Iterator[int]:
    with Journal(root / "a.jsonl", report=lambda line: None) as journal:
        while True:
            step += 1
            journal.append({"step": step, "text": "x" * 400})
            yield step


def last_appended(root: Path) -> int:
    steps = [record["step"] for _, _, record in read_records(root / "a.jsonl")]
    assert steps == list(range(1, len(steps) + 1))
    return len(steps)


MODES = {"checkpoint": (save_forever, last_saved), "journal": (append_forever, last_appended)}


def kill_once(write: Callable[[Path, int], Iterator[int]], root: Path, step: int, delay_s: float) -> int:
    """Fork a writer, kill it after `delay_s`; the last step that it confirmed."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        for done in write(root, step):
            os.write(send, b"%d\n" % done)
    os.close(send)
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)
    with open(receive, "rb") as pipe:
        confirmed = [int(line) for line in pipe]
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    return confirmed[-1] if confirmed else step


def main(mode: str, root: Path, kills: int) -> None:
    write, last = MODES[mode]
    delays = random.Random(0)
    step, longest_s = 0, 0.06
    for _ in range(kills):
        confirmed = kill_once(write, root, step, delays.uniform(0.005, longest_s))
        if confirmed == step:
            longest_s *= 1.5  # a busy machine
        step = last(root)
        assert step in (confirmed, confirmed + 1), (confirmed, step)
    sys.stdout.write(json.dumps({"confirmed": step}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
