"""CPU time and memory of `show`, `compare`, `resume` and reports on runs of many trajectories.

    python benchmarks/large_runs.py                   # 1,000, 10,000 and 100,000 trajectories
    python benchmarks/large_runs.py --sizes 1000

The trajectories are made up: AgentFlow's, 3 turns, about 8 kB of JSON. For each size there are an evaluation under way
(all but ten trajectories in its journal), two that are finished, and a training run (128 trajectories a step, and all
of them again in each of its two evaluations). Each command is a process of its own; the table has its seconds of CPU
time and its peak memory. "First line" is that of `midstream resume`, in seconds of wall-clock time from its start;
"Ctrl-C" is the seconds from the signal, with 1,000 trajectories under way against a local server, to the process's end.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from midstream import api
from midstream.core.events import RunEvent, RunStarted
from midstream.core.metrics import EvaluationResult, StepMetrics, StepTiming
from midstream.core.task import Task
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
from midstream.evaluation.run import Summary
from midstream.recipe.build import Build
from midstream.recipe.files import to_toml
from midstream.recipe.inputs import run_recipe
from midstream.recipe.overrides import changed_recipe
from midstream.rollout import Group
from midstream.runs import Journal, RunDirectory
from midstream.runs.files import encode_record
from midstream.runs.info import collect_info

SIZES = (1_000, 10_000, 100_000)
LEFT = 10  # trajectories that an evaluation under way still has to run
STEP = 128  # trajectories of a training step
UNDER_WAY = 1_000  # trajectories at once, when Ctrl-C is pressed
RECIPE = """extends = "agentflow-prompted"
name = "large"
rollout = {{ concurrency = {concurrency} }}

[tools.guess]

[engines.model]
type = "openai_compatible"
model = "none"
base_url = "http://127.0.0.1:{port}/v1"
max_concurrency = {concurrency}
"""
WORDS = "The archive lists the height of the place as 105 and names the survey that measured it. "


def template(*, right: bool) -> bytes:
    """A made-up run of 3 turns and 10 calls as a line of JSON, with marks for what differs between tasks."""

    def call(role: str, turn: int, words: int) -> Call:
        # Each prompt is its own, or compression would make the file small.
        messages = (Message(role="user", content=f"QUESTION {turn} NUMBER {WORDS}"),)
        usage = Usage(prompt_tokens=900 + 40 * turn, completion_tokens=20 * words)
        return Call(role=role, engine="agent", messages=messages, completion=WORDS * words, usage=usage)

    def turn(index: int) -> Turn:
        action = Action(sub_goal=WORDS, tool="local_search", context=f"QUESTION {index} NUMBER")
        return Turn(
            index=index,
            events=("call", "action", "call", "command", "observation", "call", "verdict"),
            action=action,
            command=Command(tool="local_search", arguments={"query": f"height {index} of NUMBER"}),
            observation=Observation(status="ok", text=WORDS * 4, duration_s=0.01),
            verdict=Verdict(result_valid=True, memory_sufficient=index == 3, analysis=WORDS),
            calls=(call("planner", index, 3), call("executor", index, 1), call("verifier", index, 2)),
        )

    made = Trajectory(
        id="TASK#0",
        task_id="TASK",
        question="QUESTION",
        turns=tuple(map(turn, (1, 2, 3))),
        closing_calls=(call("generator", 3, 1),),
        answer="ANSWER" if right else "not ANSWER",
        gold="ANSWER",
        reward=Score(value=float(right), parts={"exact": float(right)}),
        stop_reason="verified",
        duration_s=2.5,
    )
    return encode_record(made, exclude_defaults=True)


def lines(tasks: Sequence[Task], shift: int = 0) -> Iterator[bytes]:
    """A made-up trajectory of each task; `shift` decides which third of them is wrong."""
    templates = [template(right=right) for right in (False, True)]
    for place, task in enumerate(tasks):
        right = (place + shift) % 3 > 0
        line = templates[right].replace(b"QUESTION", task.question.encode()).replace(b"TASK", task.id.encode())
        # Each prompt has its own number, or compression would make the file small.
        line = line.replace(b"NUMBER", b"%d" % (place * 7919 % 10007)).replace(b"ANSWER", task.answer.encode())
        yield line


def write_segment(run: RunDirectory, name: int | str, tasks: Sequence[Task], shift: int = 0) -> None:
    """The trajectories of `lines` as a segment."""
    with gzip.open(run.trajectories.path(name), "wb", compresslevel=1) as file:
        file.writelines(lines(tasks, shift))


def write_journal(run: RunDirectory, name: str, tasks: Sequence[Task]) -> None:
    """The trajectories of `lines` as the journal of an evaluation under way."""
    with run.results_path.open("wb") as file:
        for line in lines(tasks):
            file.write(b'{"set":"%b","trajectory":%b}\n' % (name.encode(), line.rstrip(b"\n")))


def result_of(tasks: Sequence[Task], step: int | None = None) -> EvaluationResult:
    """The numbers of made-up trajectories, counted of a few of them."""
    made = [Trajectory.model_validate_json(line) for line in lines(tasks[:100])]
    about = {"policy": "made up", "set_name": "test", "split": "test", "sampling": "greedy", "metric": "exact match"}
    summary = Summary(judged=False, seed=0, step=step, **about)
    for task, trajectory in zip(tasks, made, strict=False):
        summary.add(Group(task=task, trajectories=(trajectory,)))
    return summary.result().model_copy(update={"tasks": len(tasks)})


def make_evaluations(root: Path, size: int, port: int) -> list[Task]:
    """`root`/under-way and `root`/a and /b, finished; returns their tasks."""
    questions = [
        {"question": f"How high is place {number} of {size} ?", "answer": str(number)} for number in range(size)
    ]
    (root / "test.jsonl").write_text("\n".join(map(json.dumps, questions)) + "\n")
    recipe = root / "large.toml"
    recipe.write_text(RECIPE.format(concurrency=UNDER_WAY, port=port))

    def stop(event: RunEvent) -> None:
        if isinstance(event, RunStarted):
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        api.evaluate(
            str(recipe), out=root / "under-way", task_files=[str(root / "test.jsonl")], temperature=0.0, listener=stop
        )
    build = Build(run_recipe(RunDirectory.open(root / "under-way")))
    tasks = list(build.set_tasks(build.recipe.evaluation.sets[0]))
    for name in ("a", "b"):
        shutil.copytree(root / "under-way", root / name)
        run = RunDirectory.open(root / name)
        write_segment(run, "test-greedy", tasks, shift=int(name == "b"))
        run.evaluations.append(result_of(tasks))
        run.set_status("finished")
    write_journal(RunDirectory.open(root / "under-way"), "test-greedy", tasks[:-LEFT])
    return tasks


def make_training(root: Path, tasks: Sequence[Task]) -> None:
    """A training run whose steps hold as many trajectories as each of its two evaluations."""
    build = Build(changed_recipe("flow-grpo-tiny"))
    run = RunDirectory.create(root, collect_info("flow-grpo-tiny", 0, build.resolved), to_toml(build.resolved))
    steps = range(1, 1 + len(tasks) // STEP)
    for step in steps:
        write_segment(run, step, tasks[(step - 1) * STEP : step * STEP])
    with Journal(run.metrics.path) as metrics, Journal(run.timings.path) as timings:
        metrics.append_many([StepMetrics(step=step, policy_version=step - 1, reward_mean=0.5) for step in steps])
        timings.append_many([StepTiming(step=step, duration_s=2.0) for step in steps])
    for step in (0, steps[-1]):
        write_segment(run, f"test-greedy-{step}", tasks, shift=step)
        run.evaluations.append(result_of(tasks, step))
    run.set_status("finished")


@dataclass(frozen=True)
class Measured:
    """A process: its CPU seconds, peak memory in MB, and seconds until its first line."""

    cpu_s: float
    peak_mb: float
    first_line_s: float


# A small process between, because a process begins with the peak memory of the one that started it.
BETWEEN = """
import os, sys
_, status, usage = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ), 0)
print("\\n", os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
"""


def measured(*command: object) -> Measured:
    """Run a Python command to its end; its output is read and dropped."""
    start = time.perf_counter()
    words = [sys.executable, "-S", "-c", BETWEEN, sys.executable, *map(str, command)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        end = process.stdout.readline()
        first_line_s = time.perf_counter() - start
        while block := process.stdout.read(1 << 16):
            end = (end + block)[-4096:]
    code, cpu_s, peak_mb = end.splitlines()[-1].split()
    if code != b"0":
        raise SystemExit(f"{command} failed:\n{end.decode()}")
    return Measured(float(cpu_s), float(peak_mb), first_line_s)


def commands(root: Path) -> dict[str, list[object]]:
    """The commands on the directories of one size; the last finishes the evaluation under way."""
    under_way, a, b, trained = (root / name for name in ("under-way", "a", "b", "trained"))
    [wanted] = RunDirectory.open(a).trajectories.open("test-greedy").at([100])
    code = "import sys; from pathlib import Path; from midstream.view.bundle import write_runs;"
    code += "write_runs([Path(sys.argv[1])], Path(sys.argv[1], 'report.html'))"
    midstream = {
        "show, under way": ["show", under_way],
        "show ID, under way": ["show", under_way, wanted.id],
        "show, finished": ["show", a],
        "show ID": ["show", a, wanted.id],
        "show --tasks --json": ["show", a, "--tasks", "--json"],
        "show, training": ["show", trained],
        "show ID, training": ["show", trained, f"step-000001/{wanted.id}"],
        "compare": ["compare", a, b],
        "resume, finished": ["resume", a],
        "resume": ["resume", under_way],
    }
    return {"report, training": ["-c", code, trained]} | {
        name: ["-m", "midstream.cli.main", *words] for name, words in midstream.items()
    }


def ctrl_c(root: Path) -> float:
    """Seconds from Ctrl-C, with `UNDER_WAY` trajectories under way, to the end of the process."""
    command = (sys.executable, "-m", "midstream.cli.main", "eval", root / "large.toml", "--tasks", root / "test.jsonl")
    process = subprocess.Popen([*map(str, command), "--out", str(root / "stopped"), "--quiet"], stderr=subprocess.PIPE)
    journal = root / "stopped" / "results.jsonl"
    while not (journal.exists() and journal.stat().st_size) and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    start = time.perf_counter()
    _, errors = process.communicate()
    seconds = time.perf_counter() - start
    assert process.returncode == 130, errors.decode()
    shutil.rmtree(root / "stopped")
    return seconds


def main() -> None:
    """Make the directories of each size, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="only the commands that begin so, e.g. show")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args()
    # Connections of a thousand trajectories.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found: dict[str, list[Measured]] = {}
    stopped: list[float] = []
    server = [sys.executable, str(Path(__file__).with_name("rollouts.py")), "--serve", "--latency", "0.5"]
    with tempfile.TemporaryDirectory() as temporary, subprocess.Popen(server, stdout=subprocess.PIPE) as serving:
        try:
            assert serving.stdout is not None
            port = int(serving.stdout.readline())
            for size in options.sizes:
                root = Path(temporary) / str(size)
                root.mkdir()
                make_training(root / "trained", make_evaluations(root, size, port))
                for name, words in commands(root).items():
                    if name.startswith(options.only):
                        found.setdefault(name, []).append(measured(*words))
                        print(f"{size:,} {name}: {found[name][-1]}", file=sys.stderr, flush=True)
                if "Ctrl-C".startswith(options.only):
                    stopped.append(ctrl_c(root))
                shutil.rmtree(root)
        finally:
            serving.kill()
    print(f"{'CPU s / peak MB':24}" + "".join(f"{size:>16,}" for size in options.sizes))
    for name, row in found.items():
        print(f"{name:24}" + "".join(f"{f'{one.cpu_s:.1f} / {one.peak_mb:.0f}':>16}" for one in row))
    print(f"{'Ctrl-C, s':24}" + "".join(f"{seconds:>16.1f}" for seconds in stopped))
    first_lines = "".join(f"{one.first_line_s:>16.1f}" for one in found.get("resume", ()))
    print(f"{'resume: first line, s':24}{first_lines}")


if __name__ == "__main__":
    main()
