"""Mathematical answers: words and numbers compared here, formulas by Math-Verify in the sandbox and under its clock.

Math-Verify compares expressions, sets, intervals, matrices and equations by value. It never runs in this process: it
evaluates what a model wrote, its time-outs use signals, which do not work in threads, and 9^{9^{9^9}} would block every
other run.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from functools import partial
from importlib import resources

from pydantic import Field

from midstream.components.component import Context, RewardConfig, Sandbox
from midstream.core.answers import LONGEST, extract
from midstream.core.errors import RewardError, UnsupportedError
from midstream.core.task import Task
from midstream.core.trajectory import Score, Trajectory
from midstream.rewards.numeric import number_of, with_point
from midstream.rewards.rule import SingleFlight, unfit_task
from midstream.rewards.statement import Statement, state
from midstream.sandbox.launch import find_installed
from midstream.sandbox.pool import PythonPool
from midstream.sandbox.settings import CodeLimits

LIBRARY = "math_verify"
_OTHER_REWARD = 'correct the task, or score it by another reward: exact_match, or a judge with rule = ""'
_DATE = re.compile(r"\b\d{4}-\d\d?-\d\d?\b|\b\d\d?/\d\d?/\d{4}\b|\d:\d\d\s*[ap]\.?m\b", re.IGNORECASE)
# Inline formulas are of one line.
_OVER_LINES = re.compile(r"(?<![\\\d$])\$[ \t]*\n[^$]*\n[ \t]*\$(?!\$)")
_DECIMAL_COMMA = re.compile(r"-?\d+,\d\d")
_NAMED = re.compile(r"\s*\\?[a-zA-Z]\w*(?:\([^()]*\)|_\{[^{}]*\})?\s*=[^=]*$")
_UNITS = (
    "mm millimeter millimetre; cm centimeter centimetre; m meter metre; km kilometer kilometre; in inch inche; ft foot "
    "feet; yd yard; mi mile; g gram; kg kilogram; s sec second; min minute; h hr hour; day; week; yr year; dollar; cent"
)
_UNIT_NAMES = {name: names.split()[0] for names in _UNITS.split(";") for name in names.split()}
_UNIT = re.compile(r"\d\s*(square |sq\.? |cubic )?([a-z]+?)s?\b\s*(?:\^\s*\{?([23]))?", re.IGNORECASE)
_COPULA = re.compile(r"^.*\b(?:is|are|was|were|it's)\s", re.IGNORECASE)


class MathConfig(RewardConfig):
    """1 if the answer is mathematically equal to an accepted one, else 0.

    Attributes:
        timeout_s: CPU-seconds of one comparison, rounded up; five times that on the wall clock
        precision: decimals to which numbers are compared if one is inexact
        workers: comparisons at once
    """

    rule_based = True
    extra = "math"

    timeout_s: float = Field(default=5.0, ge=0.01, le=86_400)
    precision: int = Field(default=6, ge=0, le=15)
    workers: int = Field(default=2, ge=1, le=1000)

    def build(self, context: Context) -> Math:
        """Build it."""
        return Math(self, context.sandbox)


class Math:
    """1 if the answer states what one of the task's gold answers states, else 0; no answer is 0.

    `statement.state` reads both. Words are compared as words, numbers as exact fractions (with a decimal point: to
    `precision` decimals), both in this process; formulas by Math-Verify in the sandbox. Stricter than Math-Verify: a
    gold of words needs these words ("June 20" is not "May 20"), 10 is not 10 %, "not 7" is not 7, 42 in base 8 is not
    42, 3:4 is no fraction, known units must agree if both sides have one. Not normalized: forms of dates, units into
    each other.

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
        limits = CodeLimits(workers=config.workers, timeout_s=config.timeout_s, libraries=(LIBRARY,))
        self.pool = PythonPool(limits, sandbox, queue_s=None, table="reward")
        if sandbox.tier != "remote" and not find_installed((LIBRARY,)):
            raise _not_installed()
        self._source = (resources.files("midstream.rewards") / "math_check.py").read_text(encoding="utf-8")
        # Names of variables count, a set is not a tuple, and an inequality that describes the gold set is right.
        self._options = {"precision": config.precision, "strict": True, "allow_set_relation_comp": True}
        self._seen: SingleFlight[bool | None] = SingleFlight()

    def check(self, task: Task) -> None:
        """Refuse a task with a gold answer that states nothing, or a formula that is not closed."""
        for gold in task.answers:
            stated = state(gold, gold)
            if not (stated.formula or _is_words(stated)) or stated.formula.count("{") != stated.formula.count("}"):
                raise unfit_task(task, f"has a gold answer that nothing compares with, {gold!r:.200}", _OTHER_REWARD)

    async def score(self, task: Task, trajectory: Trajectory) -> Score:
        """Compare words and numbers here, formulas in a worker; identical pairs of formulas are compared once.

        Raises `SandboxError` if no worker could run it, `RewardError` if Math-Verify reads nothing in the gold answer,
        or cannot check it in time either.
        """
        known = " ".join((task.question, *task.answers))
        found = state(_OVER_LINES.sub(" ", extract((trajectory.answer or "")[-LONGEST:])), known)
        if not found.words:
            return Score(value=0.0)
        golds = [state(gold, gold) for gold in task.answers]
        decided = [self._decide(gold, found) for gold in golds]
        if True in decided:
            return Score(value=1.0)
        formulas = tuple(gold.formula for gold, right in zip(golds, decided, strict=True) if right is None)
        if not formulas:
            return Score(value=0.0)
        right = await self._seen.get((formulas, found.formula), partial(self._verdict, task, formulas, found.formula))
        if right is not None:
            return Score(value=float(right))
        # If to compare it with 1 takes too long as well, the gold answer is wrong.
        for gold in formulas:
            if await self._seen.get(((gold,), "1"), partial(self._verdict, task, (gold,), "1")) is None:
                raise _bad_gold(task, gold, "Math-Verify cannot even compare it with 1 within the limits")
        return Score(value=0.0, parts={"timed_out": 1.0})

    def _decide(self, gold: Statement, found: Statement) -> bool | None:
        """Whether words or numbers are equal; None if Math-Verify must compare formulas."""
        if _same_words(gold.words, found.words):
            return True
        if _is_words(gold) or not found.formula:
            return False
        if _DECIMAL_COMMA.fullmatch(gold.formula) and gold.formula.replace(",", ".") == found.formula:
            return True
        if "=" in gold.formula and ("=" in found.formula or not _NAMED.match(gold.formula)):
            return None
        ours = number_of(with_point(found.formula) if "." in gold.formula else found.formula)
        theirs = number_of(gold.formula)
        if ours is None or theirs is None:
            return None
        if _unit(found) and _unit(gold) and _unit(found) != _unit(gold):
            return False
        if ours.exact and theirs.exact:
            return ours.share == theirs.share
        return round(ours.share, self._options["precision"]) == round(theirs.share, self._options["precision"])

    async def close(self) -> None:
        """End the processes."""
        await self.pool.close()

    async def _verdict(self, task: Task, golds: Sequence[str], answer: str) -> bool | None:
        """What `math_check` decides, None if it could not within the limits.

        The worker prints it in a line that starts with a secret mark.
        """
        mark = secrets.token_hex(16)
        asked = json.dumps({"golds": golds, "answer": answer, **self._options})
        result = await self.pool.run(f"{self._source}\n\nreport({asked!r}, {mark!r})")
        if result.reason in ("timeout", "memory", "killed"):
            return None
        head, _, found = result.text.partition(" ")
        if head != mark or result.reason != "ok":
            if "ModuleNotFoundError" in result.text and LIBRARY in result.text:
                raise _not_installed()
            raise RewardError(
                f"Math-Verify failed over the answer {answer!r:.200} to task {task.id!r}: {result.text[-500:]}",
                code="math-verify-failed",
                fix="pip install 'midstream[math]' installs a tested version",
            )
        verdict = json.loads(found)
        if "unreadable" in verdict:
            raise _bad_gold(task, verdict["unreadable"], "Math-Verify finds neither a formula nor a number in it")
        return verdict["right"]


def _not_installed() -> UnsupportedError:
    what = "Math-Verify is not installed where the math reward runs"
    fix = "pip install 'midstream[math]'; with sandbox.tier = \"remote\", in the container's image"
    return UnsupportedError(what, code="missing-extra", fix=fix)


def _is_words(statement: Statement) -> bool:
    """Whether it is to be compared as words: no value, a word before the value ("June 20"), a date or a time of day."""
    return bool(_DATE.search(statement.words)) or (
        not statement.bare and (not statement.formula or statement.words[0].isalpha())
    )


def _unit(statement: Statement) -> tuple[str, str] | None:
    """The unit after the number and its power, if it is a known one."""
    found = _UNIT.search(statement.words)
    if found is None or (name := _UNIT_NAMES.get(found[2].lower())) is None:
        return None
    return name, found[3] or {"s": "2", "c": "3"}.get((found[1] or "-")[0].lower(), "")


def _same_words(gold: str, answer: str) -> bool:
    """Whether two texts are the same words; an option's letter, or a sentence to its copula, may come before them."""
    wanted, ours = _words(gold), _words(answer)
    option = re.match(r"\(?([A-Z])\)\s", answer)
    return bool(wanted) and wanted in (ours, _words(_COPULA.sub("", answer)), _words(option[1]) if option else "")


def _words(text: str) -> str:
    # Half of a day.
    text = re.sub(r"(?<=\d)\s*([ap])\.?m\b\.?", r" \1m", text.casefold())
    text = re.sub(r"^\s*(?:at|on|in|a|an|the)\b", "", text).strip(" .,;:")
    return " ".join(re.sub(r"^\((.*)\)$", r"\1", text).split())


def _bad_gold(task: Task, gold: str, cause: str) -> RewardError:
    return RewardError(
        f"task {task.id!r} has a gold answer that nothing compares with, {gold!r:.200}",
        code="task-unfit",
        cause=cause,
        fix=_OTHER_REWARD,
        retryable=False,
    )
