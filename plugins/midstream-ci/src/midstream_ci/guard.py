"""What the pytest fixture `midstream` gives: requirements on an agent as a test.

For example:

    def test_bot(midstream):
        midstream.assert_success(agent, ms.tasks("questions.jsonl").test, at_least=0.8, reward=exact)
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Unpack

import pytest

import midstream as ms
from midstream.api import AnyAgent, EvaluateOptions
from midstream.core.errors import UsageError
from midstream.core.events import AgentBuilt, RunEvent
from midstream.interface.tasks import Tasks
from midstream.report.progress import print_warnings
from midstream_ci.comparisons import decide_comparison, parse_comparison
from midstream_ci.requirements import Decision, decide, exit_code, parse_requirement, require_decidable


class Guard:
    """Evaluates agents in the test's own directory, and fails the test where a requirement is not met.

    A requirement that is undecided fails the test too.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._count = directory, 0

    def evaluate(self, agent: AnyAgent, tasks: Tasks | None = None, **options: Unpack[EvaluateOptions]) -> ms.Run:
        """Evaluate an agent, as `midstream.evaluate` does; runs that ended in an error fail no test by themselves."""
        self._count += 1
        options.setdefault("quiet", True)
        return ms.evaluate(agent, tasks, out=self._directory / f"evaluation-{self._count}", **options)

    def assert_success(
        self, agent: AnyAgent, tasks: Tasks | None = None, *, at_least: float, **options: Unpack[EvaluateOptions]
    ) -> ms.Run:
        """Require that the mean success on every set is at least this, as its 95 % interval shows; from 0 to 1."""
        __tracebackhide__ = True
        if not isinstance(at_least, Real) or not 0 <= at_least <= 1:
            raise UsageError(
                f"at_least = {at_least!r} is not a number from 0 to 1",
                code="requirement-invalid",
                fix="e.g. at_least=0.8 for 80 %",
            )
        # A requirement has no exponent.
        bound = f"{float(at_least):.12f}".rstrip("0").rstrip(".")
        return self.require(agent, tasks, f"success >= {bound}", **options)

    def require(
        self, agent: AnyAgent, tasks: Tasks | None, *requirements: str, **options: Unpack[EvaluateOptions]
    ) -> ms.Run:
        """Require e.g. "success >= 0.8" and "cost_usd <= 0.5", at least one; returns the evaluation.

        Raises `UsageError` without a requirement, and for one that the evaluation cannot decide.
        """
        __tracebackhide__ = True
        if not requirements:
            raise UsageError(
                "nothing is required, so this test could not fail",
                code="missing-option",
                fix='require(agent, tasks, "success >= 0.8"), or evaluate(agent, tasks) to evaluate alone',
            )
        parsed = [parse_requirement(text) for text in requirements]
        inner = options.get("listener") or print_warnings

        def listen(event: RunEvent) -> None:
            if isinstance(event, AgentBuilt):
                evaluation = event.resolved["evaluation"]
                require_decidable(parsed, [chosen["name"] for chosen in evaluation["sets"]], evaluation["trials"])
            inner(event)

        run = self.evaluate(agent, tasks, **{**options, "listener": listen})
        _check(decide(run.directory, parsed), str(run.path))
        return run

    def assert_comparison(self, before: ms.Run | str, after: ms.Run | str, requirement: str = "no-regression") -> None:
        """Require "no-regression", "better" or e.g. "difference >= -5%" of two evaluations of the same tasks."""
        __tracebackhide__ = True
        decisions = decide_comparison(ms.compare(before, after), [parse_comparison(requirement)])
        _check(decisions, f"{before}, {after}")


def _check(decisions: Sequence[Decision], where: str) -> None:
    __tracebackhide__ = True
    if exit_code(decisions):
        pytest.fail("\n".join([*map(str, decisions), f"midstream show {where}"]), pytrace=False)
