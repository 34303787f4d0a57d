"""The viewer on large runs: time to the documents of its first paint, to its pages in a browser, and peak memory.

    python benchmarks/view.py                       # 10,000 trajectories, and one of 120,000 events
    python benchmarks/view.py --keep DIRECTORY      # keep the runs, to look at them or to measure other viewers
    python benchmarks/view.py --pages               # pages in Chromium, too
    python benchmarks/view.py --inspect PYTHON      # and, interleaved, those of inspect_ai, which this Python has

Two runs are made up: an evaluation of 10,000 trajectories of 3 turns, and one of a single trajectory of 40,000 turns,
120,000 events, about 44 MB of JSON in one line. inspect_ai's logs have the same texts and numbers of events, and less
of what training needs: no prompts and log-probabilities (benchmarks/view_inspect.py). A server is started for each
measurement; its memory is its peak (VmHWM, Linux). Times are wall-clock seconds: of requests over HTTP from the first
one on, and of pages from the address on until the first row or turn is seen.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from midstream.core.metrics import EvaluationResult, FamilyResult, ToolUse
from midstream.core.trajectory import (
    Action,
    Call,
    Command,
    Message,
    Observation,
    Score,
    Trajectory,
    Turn,
    Usage,
    Verdict,
)  # fmt: skip
from midstream.runs import RunDirectory
from midstream.runs.info import EvaluationInfo, collect_info
from midstream.runs.segments import result_name

WORDS = "The archive lists the height of the place as 105 and names the survey that measured it. "
MANY, LONG = "many", "long"  # the names of the runs


def turn_of(index: int, seed: int) -> Turn:
    """A turn of 3 events and about 1.1 kB of JSON, with words of its own, or it would be packed too well."""
    noise = f"{(index * 2654435761 + seed * 40503) % 2**32:08x}"
    call = Call(
        role="planner",
        engine="model",
        messages=(Message(role="user", content=f"Turn {index}: {WORDS}{noise}"),),
        completion=f"look up {noise}",
        prompt_ids=tuple((index * 7 + place * 13 + seed) % 32_000 for place in range(24)),
        completion_ids=tuple((index * 11 + place * 17 + seed) % 32_000 for place in range(8)),
        logprobs=tuple(-((index * 31 + place * 7) % 997) / 1000 for place in range(8)),
        usage=Usage(prompt_tokens=24, completion_tokens=8),
    )
    return Turn(
        index=index,
        events=("call", "action", "observation"),
        action=Action(sub_goal=f"find {noise}", tool="local_search", context=noise),
        command=Command(tool="local_search", arguments={"query": f"height of {noise}"}),
        observation=Observation(status="ok", text=f"{WORDS}{noise} {WORDS}"),
        verdict=Verdict(result_valid=True, memory_sufficient=False, analysis=noise),
        calls=(call,),
    )


def write_run(root: Path, trajectories: Iterator[Trajectory], count: int) -> None:
    """An evaluation with these trajectories."""
    resolved = {"agent": {"type": "agentflow"}, "engines": {}, "tools": {}}
    run = RunDirectory.create(root, collect_info("made-up", 0, resolved, EvaluationInfo()), 'name = "made-up"\n')
    run.trajectories.write(result_name("test", "T=1"), trajectories)
    run.evaluations.append(
        EvaluationResult(
            policy="agent", set_name="test", split="test", sampling="T=1", seed=0, tasks=count, success=0.5,
            success_without_errors=0.5, errors=0, by_family={"made up": FamilyResult(tasks=count, success=0.5)},
            turns_mean=3.0, tool_use=ToolUse(),
        )
    )  # fmt: skip
    run.set_status("finished")


def make_runs(directory: Path, trajectories: int, turns: int) -> None:
    """Both runs, unless they are there."""
    if not (directory / MANY).exists():
        made = (
            Trajectory(
                id=f"t{number}#0", task_id=f"t{number}", family="made up", question=f"{number}: {WORDS}",
                agent="agentflow", turns=tuple(turn_of(index, number) for index in (1, 2, 3)), answer=str(number),
                gold=str(number), reward=Score(value=number % 2),
            )
            for number in range(trajectories)
        )  # fmt: skip
        write_run(directory / MANY, made, trajectories)
    if not (directory / LONG).exists():
        long = Trajectory(
            id="long#0", task_id="long", family="made up", question=WORDS, agent="agentflow",
            turns=tuple(turn_of(index, 0) for index in range(1, turns + 1)), answer="105", gold="105",
            reward=Score(value=1.0),
        )  # fmt: skip
        write_run(directory / LONG, iter([long]), 1)


@dataclass
class Server:
    """A running `midstream view`."""

    address: str
    pid: int

    def get(self, path: str) -> tuple[float, Any]:
        """Seconds to a document's last byte, and the document."""
        began = time.perf_counter()
        with urllib.request.urlopen(f"{self.address}api/{path}", timeout=120) as answer:
            body = answer.read()
        return time.perf_counter() - began, json.loads(body)

    def memory_mb(self, name: str = "VmHWM") -> float:
        """Its peak memory."""
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return int(found[1]) / 1024 if found else float("nan")


@contextmanager
def serving(directory: Path) -> Iterator[Server]:
    """A viewer of the runs in a directory, in a process of its own."""
    command = [sys.executable, "-m", "midstream", "view", "--no-browser", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    try:
        yield Server(process.stdout.readline().strip(), process.pid)
    finally:
        process.terminate()
        process.communicate()


def first_paint(directory: Path) -> dict[str, Callable[[Server], float]]:
    """What each first paint asks for, by its name: seconds from the first request to the last byte."""
    many, long = f"run/{MANY}/part/eval-test-T1", f"run/{LONG}/part/eval-test-T1"

    def all_of(*paths: str) -> Callable[[Server], float]:
        return lambda server: sum(server.get(path)[0] for path in paths)

    return {
        "list of runs": all_of("runs"),
        "10,000 trajectories: list": all_of(f"run/{MANY}", many),
        "10,000 trajectories: the last page": all_of(f"{many}?from=9900"),
        "10,000 trajectories: those with reward 0": all_of(f"{many}?reward=0"),
        "10,000 trajectories: a text in one of them, first answer": all_of(f"{many}?text=9876:"),
        "10,000 trajectories: one of them": all_of(f"{many}/group/t5000", f"{many}/trajectory/5000"),
        "120,000 events: first turns": all_of(f"{long}/group/long", f"{long}/trajectory/0?turn=0&limit=50"),
        "120,000 events: last turns": all_of(f"{long}/trajectory/0?turn=39950&limit=50"),
        "120,000 events: tokens of a call": all_of(f"{long}/trajectory/0/call/30000/tokens"),
    }


@contextmanager
def serving_inspect(python: str, logs: Path) -> Iterator[Server]:
    """inspect_ai's viewer of the logs in a directory."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = [str(Path(python).parent / "inspect"), "view", "--log-dir", str(logs), "--port", str(port)]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = Server(f"http://127.0.0.1:{port}/", process.pid)
    try:
        for _ in range(600):
            with suppress(OSError), urllib.request.urlopen(server.address, timeout=5):
                break
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.communicate()


def page_times(directory: Path, python: str | None, repeats: int) -> None:
    """Print the time until the pages of both runs show their first row or turn, and the memory behind them."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    pages = {  # what it shows: the run, the addresses in midstream's viewer and in inspect_ai's, and a text to wait for
        "10,000 trajectories: list": (MANY, f"#/{MANY}/eval-test-T1", f"#/logs/{MANY}.eval", f"0: {WORDS.strip()}"),
        "120,000 events: first turns": (
            LONG, f"#/{LONG}/eval-test-T1/long/0", f"#/logs/{LONG}.eval/samples/sample/t0/1/transcript",
            f"find {turn_of(1, 0).action.context}",  # type: ignore[union-attr]
        ),
    }  # fmt: skip
    logs = directory / "inspect"
    if python and not logs.exists():
        subprocess.run([python, Path(__file__).with_name("view_inspect.py"), logs], check=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for title, (run, ours, theirs, text) in pages.items():
            viewers = {"midstream": (lambda run=run: serving(directory / run), ours)}
            if python:
                viewers["inspect_ai"] = (lambda run=run: serving_inspect(python, logs / run), theirs)
            times: dict[str, list[float]] = {name: [] for name in viewers}
            servers: dict[str, float] = dict.fromkeys(viewers, 0.0)
            heaps: dict[str, float] = dict.fromkeys(viewers, 0.0)
            for _ in range(repeats):
                for name, (start, address) in viewers.items():
                    with start() as server:
                        page = browser.new_page(viewport={"width": 1280, "height": 900})
                        session = page.context.new_cdp_session(page)
                        session.send("Performance.enable")
                        began = time.perf_counter()
                        page.goto(server.address + address, wait_until="commit")
                        page.get_by_text(text).first.wait_for(timeout=300_000)
                        times[name].append(time.perf_counter() - began)
                        metrics = {
                            each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]
                        }
                        heaps[name] = max(heaps[name], metrics["JSHeapUsedSize"] / 2**20)
                        servers[name] = max(servers[name], server.memory_mb())
                        page.context.close()
            for name, found in times.items():
                least, median = min(found), statistics.median(found)
                memory = f"server {servers[name]:5.0f} MB, page's scripts {heaps[name]:5.0f} MB"
                print(f"{title:<30} {name:<11} {median:6.2f} s (least {least:.2f})   {memory}", flush=True)
        browser.close()


def main() -> None:
    """Make the runs, measure, print tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="make the runs here and keep them")
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=40_000)
    parser.add_argument("--pages", action="store_true", help="measure pages in Chromium, too")
    parser.add_argument("--inspect", metavar="PYTHON", help="a Python with inspect-ai; its pages, too")
    parser.add_argument("--repeats", type=int, default=3, help="times that each page is opened (default: 3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.keep or Path(scratch)
        make_runs(directory, options.trajectories, options.turns)
        for name, measure in first_paint(directory).items():
            with serving(directory) as server:
                idle = server.memory_mb()
                print(f"{name:<58} {measure(server):6.2f} s   {idle:4.0f} -> {server.memory_mb():4.0f} MB", flush=True)
        with serving(directory) as server:  # one after the other in one process, as a person looks around
            for measure in first_paint(directory).values():
                measure(server)
            print(f"{'all of these in one server':<58} {'':8}   {server.memory_mb():12.0f} MB")
        if options.pages or options.inspect:
            page_times(directory, options.inspect, options.repeats)


if __name__ == "__main__":
    main()
