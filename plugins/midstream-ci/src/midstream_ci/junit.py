"""JUnit files: a suite for each set, a case for each task; and a suite of the requirements.

A case fails if the task's score is below 1, and is an error if it has no result. Whether the build fails is what the
requirements say: with `success >= 0.8` some cases may fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean
from xml.etree import ElementTree

from midstream.core.metrics import EvaluationResult
from midstream.core.text import shorten
from midstream.core.trajectory import Trajectory
from midstream.evaluation.estimates import value
from midstream.evaluation.pairs import Paired
from midstream.report.evaluation import evaluated_trajectories
from midstream.runs import RunDirectory
from midstream_ci.comparisons import Compared
from midstream_ci.requirements import Decision, set_label

# Characters of a text in a message and below it: build servers refuse large files.
_LONGEST, _LONGEST_DETAIL = 300, 2000
# What XML cannot hold, even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(kw_only=True)
class _Case:
    """A case: why it failed ("" if it did not), and whether there is no result to judge."""

    name: str
    failure: str = ""
    details: str = ""
    is_error: bool = False
    seconds: float = 0.0


def evaluation_junit(run: RunDirectory, decisions: Sequence[Decision]) -> str:
    """The JUnit file of an evaluation."""
    suites = [(set_label(result), _evaluated(run, result)) for result in run.evaluations.read()]
    return _document([*suites, ("requirements", _decided(decisions))])


def comparison_junit(comparison: Compared, decisions: Sequence[Decision]) -> str:
    """The JUnit file of a comparison: a case for each task that differs, which fails if it became worse."""
    suites = []
    for pair in comparison.found:
        name = f"{pair.other} against {pair.first}, {pair.set_name} {pair.sampling}"
        if isinstance(pair, Paired):
            suites.append((name, list(_compared(pair))))
    return _document([*suites, ("requirements", _decided(decisions))])


def _evaluated(run: RunDirectory, result: EvaluationResult) -> list[_Case]:
    tasks: dict[str, list[Trajectory]] = {}
    for trajectory in evaluated_trajectories(run, result):
        tasks.setdefault(trajectory.task_id, []).append(trajectory)
    return [_case(name, trials) for name, trials in tasks.items()]


def _case(name: str, trials: Sequence[Trajectory]) -> _Case:
    seconds = sum(trial.duration_s for trial in trials)
    finished = [trial for trial in trials if trial.status == "ok"]
    if not finished:
        error = trials[0].error
        return _Case(name=name, failure=error.summary if error else "no result", is_error=True, seconds=seconds)
    wrong = next((trial for trial in finished if value(trial) < 1), None)
    if wrong is None:
        return _Case(name=name, seconds=seconds)
    score = fmean(map(value, finished))
    texts = {"question": wrong.question, "gold": wrong.gold or "", "answer": wrong.answer or ""}
    lines = [f"{name}: {shorten(text, _LONGEST_DETAIL)}" for name, text in texts.items()]
    details = "\n".join([*lines, f"stopped: {wrong.stop_reason}", f"midstream show RUN {wrong.id}"])
    return _Case(name=name, failure=_failure(score, wrong), details=details, seconds=seconds)


def _failure(score: float, wrong: Trajectory) -> str:
    """The score, and where the first wrong answer and the gold answer differ."""
    head = f"score {score:.3g}"
    if wrong.answer is None:
        return f"{head}: no answer, stopped by {wrong.stop_reason}"
    gold, answer = wrong.gold or "", wrong.answer
    pairs = enumerate(zip_longest(gold, answer))
    place = next(place for place, (one, other) in pairs if one != other) if gold != answer else None
    shown = [repr(shorten(text, _LONGEST)) for text in (answer, gold)]
    differ = "" if place is None else f", which differ from character {place + 1} on"
    return f"{head}: answer {shown[0]}, gold {shown[1]}{differ}"


def _compared(pair: Paired) -> Iterable[_Case]:
    for task in pair.differing:
        lost = task.difference < 0
        failure = f"{task.first.value:.3g} -> {task.other.value:.3g}" if lost else ""
        texts = {"question": task.question, "gold": task.gold or ""}
        texts |= {"before": str(list(task.first.answers)), "after": str(list(task.other.answers))}
        details = "\n".join(f"{name}: {shorten(text, _LONGEST_DETAIL)}" for name, text in texts.items())
        yield _Case(name=task.task_id, failure=failure, details=details if lost else "")


def _decided(decisions: Sequence[Decision]) -> list[_Case]:
    return [
        _Case(
            name=f"{decision.requirement} ({decision.of})",
            failure="" if decision.outcome == "holds" else f"{decision.outcome}: {decision.reason}",
        )
        for decision in decisions
    ]


def _document(suites: Sequence[tuple[str, Sequence[_Case]]]) -> str:
    root = ElementTree.Element("testsuites", name="midstream")
    for name, cases in suites:
        if not cases:
            continue
        errors = sum(case.is_error for case in cases)
        failures = sum(bool(case.failure) for case in cases) - errors
        counts = {"tests": str(len(cases)), "failures": str(failures), "errors": str(errors), "skipped": "0"}
        seconds = f"{sum(case.seconds for case in cases):.3f}"
        suite = ElementTree.SubElement(root, "testsuite", {"name": _clean(name), **counts, "time": seconds})
        for case in cases:
            element = ElementTree.SubElement(
                suite, "testcase", classname=_clean(name), name=_clean(case.name), time=f"{case.seconds:.3f}"
            )
            if case.failure:
                kind = "error" if case.is_error else "failure"
                ElementTree.SubElement(element, kind, message=_clean(case.failure)).text = _clean(case.details)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
