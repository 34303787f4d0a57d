"""Inspect: a task's dataset, its solvers, its scorers.

Inspect allows one evaluation at a time in a process, and takes tasks while it runs. So there is one for many calls, and
each call adds a task of one sample and one epoch, whose model is the session. Calls run next to each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import hashlib
import importlib.util
import itertools
import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

# Read once, by the first `display_type`: nobody looks at this process.
os.environ["INSPECT_DISPLAY"] = "none"

import fsspec
from inspect_ai import Task, TaskSource, enqueue_task, eval_async, task_with
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import EvalLog, EvalSample
from inspect_ai.model import GenerateConfig, Model, get_model
from inspect_ai.scorer import Score, value_to_float
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import SandboxEnvironmentSpec, display_type, registry_create
from openai import DefaultAsyncHttpxClient

DISTRIBUTION = "inspect-ai"
JsonObject = dict[str, Any]

# A model of this name is one of the session: `openai-api/midstream/NAME`, as `inspect eval --model` names midstream.
SESSION = "openai-api/midstream/"
LOGS = "memory://midstream"
# Calls after which an evaluation ends as soon as it has none under way: it keeps the header of each log.
CALLS = 500
# For its last logs.
CLOSE_S = 10.0
# midstream limits how many runs are under way.
AT_ONCE = 10_000
LETTERS, WORDS = ("C", "I", "P", "N"), ("yes", "no", "true", "false")


class Adapter:
    """One task of inspect."""

    def __init__(self, task: str, arguments: JsonObject, roles: dict[str, str], score: str, sandbox: str) -> None:
        display_type()
        self._name, self._roles, self._score = task, roles, score
        self._task = made(task, arguments)
        self._samples = {key_of(sample): sample for sample in with_ids(self._task.dataset)}
        self._sandbox = sandbox_of(self._task, [*self._samples.values()], sandbox)
        self._evaluation: Evaluation | None = None

    def rows(self) -> list[JsonObject]:
        """Every sample. Questions that are equal end with the id of their sample."""
        texts = [shown(sample) for sample in self._samples.values()]
        often = Counter(texts)
        rows = []
        for (key, sample), text in zip(self._samples.items(), texts, strict=True):
            row = {
                "case": key,
                "question": f"{text}\n\n[sample {sample.id}]" if often[text] > 1 else text,
                "asked": text,
                "answer": sample.target if isinstance(sample.target, str) else ", ".join(sample.target),
                "family": self._name.rpartition("/")[2].rpartition("@")[2].removesuffix(".py"),
                "metadata": {"sample": str(sample.id)},
            }
            rows.append(row)
        return rows

    async def run(self, case: str, base_url: str, api_key: str, model: str) -> JsonObject:
        """Run one sample; the session's gateway draws the seeds of its requests."""
        if (sample := self._samples.get(case)) is None:
            raise ValueError(
                f"the task has another dataset each time it is loaded, now without sample {case.rpartition('#')[0]!r}: "
                "give its shuffle a seed"
            )
        async with contextlib.AsyncExitStack() as opened:

            async def asked(name: str) -> Model:
                found = get_model(
                    SESSION + name,
                    base_url=base_url,
                    api_key=api_key,
                    # The gateway's engine tries again.
                    config=GenerateConfig(max_retries=0),
                    memoize=False,
                    # The gateway is on this machine: no proxy leads there, and no certificate. Its deadlines hold.
                    http_client=DefaultAsyncHttpxClient(trust_env=False, verify=False, timeout=None),
                )
                return await opened.enter_async_context(found)

            roles: dict[str, Any] = {
                role: await asked(name.removeprefix(SESSION)) if name.startswith(SESSION) else name
                for role, name in self._roles.items()
            }
            one = copy.copy(self._task)
            # Of a registered task, inspect searches the files of all packages for its own, each time.
            vars(one).pop("__registry_info__", None)
            one = task_with(
                one,
                name=self._task.name,
                dataset=MemoryDataset([self._copied(sample)], name=self._task.dataset.name),
                model=await asked(model),
                epochs=1,
                **({"model_roles": {**(self._task.model_roles or {}), **roles}} if roles else {}),
                **({"sandbox": self._sandbox} if self._sandbox else {}),
            )
            ended = await self._evaluate(one)
        return self._result(ended, SESSION + model)

    def _copied(self, sample: Sample) -> Sample:
        """A sample that a run may change."""
        changes = {"sandbox": None} if self._sandbox and sample.sandbox else {}
        return sample.model_copy(update=changes, deep=True)

    async def _evaluate(self, task: Task) -> EvalSample:
        """Run the task in the evaluation under way, or in a new one."""
        while self._evaluation is not None and self._evaluation.ending:
            ending = self._evaluation
            await ending.close()
            if self._evaluation is ending:
                self._evaluation = None
        self._evaluation = self._evaluation or Evaluation()
        return await self._evaluation.run(task)

    def _result(self, sample: EvalSample, model: str) -> JsonObject:
        """The reward of a sample that has ended."""
        if sample.error is not None:
            places = re.findall(r'File "(.+)", line (\d+)', sample.error.traceback)
            raise SampleError(" at ".join([sample.error.message, *(":".join(place) for place in places[-1:])]))
        if grading := asked_by_scorer(sample, model):
            raise RuntimeError(f"scorer {grading!r} asks the model that is evaluated: name another in tasks.roles")
        scores = sample.scores or {}
        if not scores:
            raise RuntimeError("the task has no scorer, or it gave no score")
        parts = dict(itertools.chain.from_iterable(numbers(name, score) for name, score in scores.items()))
        chosen = self._score or next(iter(scores))
        if chosen not in parts:
            raise RuntimeError(
                f"score {chosen!r} is no number; tasks.score can be one of: {', '.join(parts) or 'none'}"
            )
        first = scores.get(chosen.partition(".")[0], next(iter(scores.values())))
        if parts[chosen] != parts[chosen] and first.reason:
            raise RuntimeError(f"scorer {chosen!r} left the sample without a score: {first.reason}")
        return {
            "answer": sample.output.completion,
            "reward": parts[chosen],
            "parts": parts,
            "feedback": first.explanation or "",
        }


class SampleError(Exception):
    """A solver, a scorer, a tool or a request of a sample failed, as inspect's log says it."""


class Evaluation(TaskSource):
    """An evaluation that runs until it has had many calls; each is a task that is added to it."""

    def __init__(self) -> None:
        self._calls: dict[int, asyncio.Future[EvalSample]] = {}
        self._numbers = itertools.count(1)
        self._context: contextvars.Context | None = None
        self._ready, self._over = asyncio.Event(), asyncio.Event()
        self.ending = False
        self.work = asyncio.create_task(self._serve())

    async def run(self, task: Task) -> EvalSample:
        """Run a task of one sample. Raises `RuntimeError` if it has no result."""
        await self._ready.wait()
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        self._calls[number] = future
        try:
            if self._context is None:
                raise RuntimeError(f"inspect could not begin: {self.work.exception() or 'it ended'}")
            self._context.run(enqueue_task, task_with(task, metadata={**(task.metadata or {}), "midstream": number}))
            return await future
        finally:
            del self._calls[number]
            if number >= CALLS and not self._calls:
                self._end()

    def initial_tasks(self) -> list[Task]:
        """A task that lasts as long as the evaluation: without one under way, it would end."""
        return [Task(dataset=[Sample(input="")], solver=self._wait(), model="mockllm/model", name="midstream")]

    async def sample_complete(self, sample: EvalSample, task: Task) -> None:
        """Hand a call its result."""
        self._hand((task.metadata or {}).get("midstream"), sample)

    async def task_complete(self, log: EvalLog) -> None:
        """Hand the error of a task whose sample did not begin, and forget the log."""
        text = log.error.message if log.error else f"the task ended without a result: {log.status}"
        self._hand((log.eval.metadata or {}).get("midstream"), RuntimeError(text))
        with contextlib.suppress(OSError):
            fsspec.filesystem("memory").rm(log.location.removeprefix("memory:/"))

    def _hand(self, number: int | None, result: EvalSample | BaseException) -> None:
        future = self._calls.get(number or 0)
        if future is None or future.done():
            return
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _wait(self) -> Solver:
        """A solver that keeps the context in which tasks can be added, and waits for the end."""

        async def solve(state: TaskState, generate: Generate) -> TaskState:
            self._context = contextvars.copy_context()
            self._ready.set()
            await self._over.wait()
            return state

        return solver("midstream_wait")(lambda: solve)()

    def _end(self) -> None:
        self.ending = True
        self._over.set()

    async def close(self) -> None:
        """Wait for its end. A sample that still runs has no caller any more."""
        done, _ = await asyncio.wait({self.work}, timeout=CLOSE_S)
        if not done:
            self.work.cancel()
            await asyncio.wait({self.work})

    async def _serve(self) -> None:
        """Run the evaluation; its end ends the calls that it still has."""
        failure: BaseException = RuntimeError("inspect's evaluation ended")
        try:
            await eval_async(
                self,
                model=None,
                log_dir=LOGS,
                log_format="eval",
                log_level="warning",
                log_realtime=False,
                log_header_only=True,
                score_display=False,
                ctl_server=False,
                max_tasks=AT_ONCE,
                fail_on_error=False,
                retry_on_error=0,
                score_on_error=False,
            )
        # What inspect raises can be anything, SystemExit too.
        except BaseException as error:
            failure = error
            raise
        finally:
            self.ending = True
            self._context = None
            self._ready.set()
            for number in [*self._calls]:
                self._hand(number, RuntimeError(f"inspect's evaluation ended: {type(failure).__name__}: {failure}"))


def made(name: str, arguments: JsonObject) -> Task:
    """The task of a package ("inspect_evals/gsm8k") or of a file ("file.py@name")."""
    path, _, function = name.partition("@")
    if not path.endswith(".py"):
        task = registry_create("task", name, **arguments)
        assert isinstance(task, Task)
        return task
    if not function:
        raise ValueError(f"tasks.task names a file: name its task, too: {path}@NAME")
    file = Path(path).absolute()
    with beneath(file.parent):
        loaded(file, f"midstream_task_{file.stem}")
        task = registry_create("task", function, **arguments)
        assert isinstance(task, Task)
        return task


def loaded(file: Path, name: str) -> ModuleType:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def beneath(directory: Path) -> Iterator[None]:
    """The working directory and import path that inspect loads a file's task with."""
    before = Path.cwd()
    sys.path.insert(0, str(directory))
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


def with_ids(samples: Sequence[Sample]) -> list[Sample]:
    """The samples; those without an id get their number, as inspect gives it."""
    return [
        sample if sample.id is not None else sample.model_copy(update={"id": n}) for n, sample in enumerate(samples, 1)
    ]


def key_of(sample: Sample) -> str:
    """A sample's id with a digest of what is asked, so that a dataset that changes with each load is noticed."""
    asked = json.dumps([shown(sample), sample.target], sort_keys=True)
    return f"{sample.id}#{hashlib.blake2b(asked.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"


def shown(sample: Sample) -> str:
    """What is asked, as text: the question or the chat, and the choices."""
    if isinstance(sample.input, str):
        text = sample.input
    elif len(sample.input) == 1:
        text = sample.input[0].text
    else:
        text = "\n\n".join(f"{message.role}: {message.text}" for message in sample.input)
    choices = [f"{chr(ord('A') + n)}) {choice}" for n, choice in enumerate(sample.choices or ())]
    return "\n".join([text, *choices]) or f"sample {sample.id}"


def sandbox_of(task: Task, samples: list[Sample], wanted: str) -> str:
    """The sandbox that replaces the task's, "" for none. Raises `ValueError` for one that cannot be served."""
    needed = {str(sample.id): spec for sample in samples if (spec := spec_of(sample.sandbox) or spec_of(task.sandbox))}
    if not needed or wanted == "own":
        return ""
    some = f"{len(needed)} of {len(samples)} samples (such as {next(iter(needed))!r})"
    if wanted == "none":
        kinds = ", ".join(sorted({spec.type for spec in needed.values()}))
        raise ValueError(
            f'{some} need a sandbox ({kinds}): set tasks.sandbox = "midstream" if their commands are Python alone, '
            '"own" where inspect can start it, or leave them out by tasks.arguments'
        )
    if made := [f"sample {name!r}: {spec.config}" for name, spec in needed.items() if spec.config is not None]:
        raise ValueError(f"midstream's sandbox cannot be set up like that of {len(made)} samples ({made[0]})")
    if setup := [str(sample.id) for sample in samples if sample.setup]:
        raise ValueError(
            f"midstream's sandbox runs no shell, and {len(setup)} samples (such as {setup[0]!r}) have a setup"
        )
    sandbox = loaded(Path(__file__).with_name("inspect_sandbox.py"), "midstream_inspect_sandbox")
    sandbox.MidstreamSandbox.open()
    return sandbox.NAME


def spec_of(sandbox: Any) -> SandboxEnvironmentSpec | None:
    """A sandbox as a task or sample states it: its type, or its type and what it is made from."""
    if sandbox is None or isinstance(sandbox, SandboxEnvironmentSpec):
        return sandbox
    return SandboxEnvironmentSpec(sandbox) if isinstance(sandbox, str) else SandboxEnvironmentSpec(*sandbox)


def numbers(name: str, score: Score) -> list[tuple[str, float]]:
    """The numbers of a score by name: its own, or those of its table."""
    if isinstance(score.value, dict):
        found = {f"{name}.{key}": value for key, value in score.value.items()}
    else:
        found = {name: score.value}
    return [(key, value_to_float()(value)) for key, value in found.items() if is_number(value)]


def is_number(value: object) -> bool:
    """Whether inspect has a number for a value; others it makes 0, with a warning."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return math.isfinite(float(value))
        return value in LETTERS or value.lower() in WORDS
    return isinstance(value, bool | int | float)


def asked_by_scorer(sample: EvalSample, model: str) -> str:
    """The scorer that asked the model that is evaluated, "" if none did."""
    scorers: dict[str, str] = {}
    for event in sample.events:
        if event.event == "span_begin" and (event.type == "scorer" or event.parent_id in scorers):
            scorers[event.id] = scorers.get(event.parent_id or "", event.name)
        if event.event == "model" and event.span_id in scorers and event.model == model and not event.role:
            return scorers[event.span_id]
    return ""
