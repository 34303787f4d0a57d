"""Which evaluations belong together: before and after on one set, and the curve between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from midstream.core.metrics import EvaluationResult
from midstream.report.numbers import mean


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One set before and after training; each side holds every sampling that was evaluated there."""

    set_name: str
    split: str
    before: tuple[EvaluationResult, ...]
    after: tuple[EvaluationResult, ...]


def where(result: EvaluationResult | Comparison) -> str:
    """The set by name, with its split where that says more."""
    return result.set_name if result.set_name == result.split else f"{result.set_name}/{result.split}"


def is_greedy(result: EvaluationResult) -> bool:
    """Whether the evaluation took the most likely token; any temperature counts as sampled."""
    return result.sampling == "greedy"


def pick(results: Iterable[EvaluationResult], *, greedy: bool) -> list[EvaluationResult]:
    """The greedy results, or the sampled ones."""
    return [result for result in results if is_greedy(result) == greedy]


def families(results: Iterable[EvaluationResult]) -> list[str]:
    """Every family named, in order of first appearance."""
    return list(dict.fromkeys(name for result in results for name in result.by_family))


def success(results: Sequence[EvaluationResult], family: str | None = None) -> float | None:
    """Mean success over `results` (seeds of one sampling), of one family or of all; None if nothing was evaluated."""
    if family is None:
        return mean([result.success for result in results])
    return mean([result.by_family[family].success for result in results if family in result.by_family])


def label(results: Sequence[EvaluationResult], otherwise: str) -> str:
    """What was evaluated, for a column head: "trained, step 300"."""
    if not results:
        return otherwise
    step = results[0].step
    return results[0].policy + (f", step {step}" if step is not None else "")


def curves(evaluations: Sequence[EvaluationResult], *, greedy: bool) -> dict[str, list[EvaluationResult]]:
    """One curve a set, by "set/split", in order of step: results with a step, all over the same number of tasks.

    A set evaluated at several sizes (a quick check while training, all tasks at the end) gives the curve of the size
    that covers the most steps, the larger one if two cover as many.
    """
    sizes: dict[tuple[str, int], list[EvaluationResult]] = {}
    for result in pick(evaluations, greedy=greedy):
        if result.step is not None:
            sizes.setdefault((f"{result.set_name}/{result.split}", result.tasks), []).append(result)
    best: dict[str, list[EvaluationResult]] = {}
    for name, tasks in sorted(sizes, key=lambda key: key[1]):
        found = sorted(sizes[name, tasks], key=lambda result: result.step or 0)
        if len(_steps(found)) >= len(_steps(best.get(name, []))):
            best[name] = found
    return best


def _steps(results: Sequence[EvaluationResult]) -> set[int | None]:
    return {result.step for result in results}


def comparisons(evaluations: Sequence[EvaluationResult]) -> list[Comparison]:
    """Before (first evaluated step) and after (last) of every set, the set with the most tasks first.

    A set evaluated at one step only has no `after`. Results without a step belong to no point of the run (other
    policies, random choice): see `others`.
    """
    by_sampling = [curves(evaluations, greedy=greedy) for greedy in (True, False)]
    found = []
    for name in dict.fromkeys(name for by_set in by_sampling for name in by_set):
        before: list[EvaluationResult] = []
        after: list[EvaluationResult] = []
        for results in (by_set[name] for by_set in by_sampling if name in by_set):
            first, last = results[0].step, results[-1].step
            before += [result for result in results if result.step == first]
            after += [result for result in results if result.step == last != first]
        set_name, split = before[0].set_name, before[0].split
        found.append(Comparison(set_name=set_name, split=split, before=tuple(before), after=tuple(after)))
    return sorted(found, key=lambda comparison: -comparison.before[0].tasks)


def others(evaluations: Sequence[EvaluationResult]) -> list[EvaluationResult]:
    """Results that belong to no step of the run: other policies on the same tasks."""
    return [result for result in evaluations if result.step is None]
