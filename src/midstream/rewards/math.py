"""Mathematical answers compared by Math-Verify, inside the sandbox and under its clock.

Math-Verify reads LaTeX and plain numbers and compares numbers, expressions, sets, intervals, matrices and equations by
value. It never runs in this process: it evaluates what a model wrote, its time-outs use signals, which do not work in
threads, and 9^{9^{9^9}} would block every other run.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from functools import partial
from importlib import resources

from pydantic import Field

from midstream.core.answers import extract
from midstream.core.component import Context, RewardConfig
from midstream.core.errors import RewardError, UnsupportedError
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards.rule import SingleFlight
from midstream.sandbox.launch import installed
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import Library, Limits
from midstream.sandbox.tiers import Sandbox

LIBRARY = "math_verify"


class MathConfig(Limits, RewardConfig):
    """Limits of one comparison (`sandbox.settings.Limits`), and what counts as equal.

    Attributes:
        timeout_s: CPU-seconds of one comparison, rounded up; five times that on the wall clock
        libraries: imported before the first comparison
        precision: decimals to which numbers are compared if one is inexact
        strict: names of variables count, and a set is not a tuple
        allow_set_relation_comp: an inequality that describes the gold set is right (the other way round it always is)
        workers: comparisons at once
    """

    rule_based = True
    extra = "math"

    timeout_s: float = Field(default=5.0, ge=0.01, le=86_400)
    libraries: tuple[Library, ...] = (LIBRARY,)
    precision: int = Field(default=6, ge=0, le=15)
    strict: bool = True
    allow_set_relation_comp: bool = False

    def build(self, context: Context) -> Math:
        """Build it."""
        return Math(self, context.sandbox)


class Math:
    """1 if Math-Verify finds the answer equal to one of the task's, else 0; no answer is 0.

    Only the text inside the last answer tags is read. A boxed formula comes first, then what follows "answer", then the
    last formula or number; `math_check` defines how bare formulas are read. Not normalized: units that Math-Verify does
    not know, words for numbers, forms of dates.

    An answer that cannot be checked within the limits is wrong, as in Math-Verify itself; `parts` then has "timed_out".
    """

    name = "math"
    judged = False

    def __init__(self, config: MathConfig, sandbox: Sandbox) -> None:
        if sandbox.tier == "arithmetic":
            raise UnsupportedError(
                'the math reward cannot run in a sandbox of tier "arithmetic", which evaluates expressions alone',
                code="sandbox-tier",
                fix="`midstream doctor` shows what a sandbox needs on this machine",
            )
        # Without a time limit for waiting: every comparison ends.
        self.pool = PythonPool(config, sandbox, queue_s=None, table="reward")
        if sandbox.tier != "remote" and not installed((LIBRARY,)):
            raise _not_installed()
        self._source = (resources.files("midstream.rewards") / "math_check.py").read_text(encoding="utf-8")
        self._options = config.model_dump(include={"precision", "strict", "allow_set_relation_comp"})
        self._seen: SingleFlight[bool | None] = SingleFlight()
        self._golds: SingleFlight[bool | None] = SingleFlight()

    def check(self, task: Task) -> None:
        """Accept any task: whether Math-Verify can read its gold answer takes a process to find out (see `score`)."""

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """Compare in a worker; identical pairs of answer and gold answers are compared once.

        Raises `SandboxError` if no worker could run it, `RewardError` if Math-Verify reads nothing in the gold answer,
        or cannot check it in time either.
        """
        answer = "" if trajectory.answer is None else extract(trajectory.answer)
        if not answer:
            return Score(value=0.0)
        right = await self._seen.get((task.answers, answer), lambda: self._compare(task, answer))
        return Score(value=0.0, parts={"timed_out": 1.0}) if right is None else Score(value=float(right))

    async def close(self) -> None:
        """End the processes."""
        await self.pool.close()

    async def _compare(self, task: Task, answer: str) -> bool | None:
        """Whether the answer is right; None if that could not be decided within the limits.

        Then the gold answer is compared with 1: if that takes too long as well, the gold answer is wrong.
        """
        right = await self._verdict(task, task.answers, answer)
        for gold in task.answers if right is None else ():
            found = await self._golds.get(gold, partial(self._verdict, task, (gold,), "1"))
            if found is None:
                raise _bad_gold(task, gold, "Math-Verify cannot even compare it with 1 within the limits")
        return right

    async def _verdict(self, task: Task, golds: Sequence[str], answer: str) -> bool | None:
        """The result of `math_check`, which the worker prints in a line that starts with a secret mark."""
        mark = secrets.token_hex(16)
        asked = json.dumps({"golds": golds, "answer": answer, **self._options})
        result = await self.pool.run(f"{self._source}\n\nreport({asked!r}, {mark!r})")
        if result.reason in ("timeout", "memory", "killed"):
            return None
        head, _, found = result.text.partition(" ")
        if head != mark or not result.ok:
            if "ModuleNotFoundError" in result.text and LIBRARY in result.text:
                raise _not_installed()
            raise RewardError(
                f"Math-Verify failed over the answer {answer!r:.200} to task {task.id!r}: {result.text[-500:]}",
                code="math-verify-failed",
                cause="this version of it differs from the one that midstream is tested with",
                fix="pip install 'midstream[math]' installs a tested version",
            )
        verdict = json.loads(found)
        if "unreadable" in verdict:
            raise _bad_gold(task, verdict["unreadable"], "Math-Verify finds neither a formula nor a number in it")
        return verdict["right"]


def _not_installed() -> UnsupportedError:
    return UnsupportedError(
        "Math-Verify is not installed where the math reward runs",
        code="missing-extra",
        cause='it comes with the extra `math`; with sandbox.tier = "remote" it must be in the container\'s image',
        fix="pip install 'midstream[math]'",
    )


def _bad_gold(task: Task, gold: str, cause: str) -> RewardError:
    return RewardError(
        f"no answer can be compared with {gold!r:.200}, the gold answer of task {task.id!r}",
        code="task-unfit",
        cause=cause,
        fix='correct the task, or score it by another reward: exact_match, or a judge with rule = ""',
        retryable=False,
    )
