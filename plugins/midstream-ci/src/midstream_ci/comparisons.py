"""Requirements on a comparison: `no-regression`, `better`, and `difference >= -0.05`.

Each is decided on the interval of the difference, set by set: the one that `midstream compare` prints, or a wider one
where several decisions share the error (Bonferroni):

    no-regression         fails where all of the interval is below 0; else it holds, and names the loss not ruled out
    better                holds where all of it is above 0; else it is undecided, or fails where all of it is below 0
    difference >= -0.05   holds where all of it keeps the bound (at most 5 points worse), fails where none of it does
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from midstream.core.errors import UsageError
from midstream.evaluation.estimates import Interval
from midstream.evaluation.pairs import PAIRED, GroupDifference, Paired, difference_interval, half_width
from midstream.report.comparison import Comparison, GroupComparison
from midstream_ci.requirements import ERROR, Decision, Outcome, Requirement, decide_bounds

NO_REGRESSION, BETTER = "no-regression", "better"
_FORM = re.compile(r"difference\s*([<>]=?)\s*([+-]?\d+(?:\.\d+)?)\s*(%?)")
Compared = Comparison | GroupComparison


def parse_comparison(text: str) -> Requirement:
    """Read a requirement on a difference. Raises `UsageError`."""
    words = text.strip()
    if words in (NO_REGRESSION, BETTER):
        return Requirement(text=words, metric=words, operator=">", bound=0.0)
    found = _FORM.fullmatch(words)
    bound = float(found[2]) / (100 if found[3] else 1) if found else 0.0
    if found is None or not -1 <= bound <= 1:
        raise UsageError(
            f"{text!r} is not a requirement on a comparison",
            code="requirement-invalid",
            fix=f"{NO_REGRESSION}, {BETTER}, or e.g. 'difference >= -5%'",
        )
    return Requirement(text=words, metric="difference", operator=found[1], bound=bound)


def decide_comparison(comparison: Compared, requirements: Sequence[Requirement]) -> list[Decision]:
    """Decide each requirement on each difference. Raises `UsageError` if nothing is compared."""
    if not comparison.found:
        raise UsageError(
            "a requirement cannot be decided: the runs share no set that can be compared",
            code="not-comparable",
            fix="midstream compare without --require says why",
        )
    # An interval of a pair never becomes narrower than the one that is printed.
    error = ERROR / max(1, len(requirements) * len(comparison.found))
    return [
        _decide(requirement, pair, min(error, 1 - pair.level))
        for requirement in requirements
        for pair in comparison.found
    ]


def _interval(pair: Paired | GroupDifference, error: float) -> Interval | None:
    """The interval of a difference that misses the truth in this share of cases."""
    if pair.interval is None or pair.verdict == "the same" or math.isclose(error, 1 - pair.level):
        return pair.interval
    if isinstance(pair, Paired):
        return difference_interval([*(task.difference for task in pair.differing), *[0.0] * pair.ties], error)
    values = (pair.first_values, pair.other_values)
    differences = [after - before for before, after in zip(*values, strict=True)] if pair.method == PAIRED else []
    half = half_width([differences] if differences else values, error)
    return pair.difference - half, pair.difference + half


def _decide(requirement: Requirement, pair: Paired | GroupDifference, error: float) -> Decision:
    of = f"{pair.other} against {pair.first}, {pair.set_name} {pair.sampling}"
    outcome: Outcome
    interval = _interval(pair, error)
    if interval is None:
        outcome, reason = "undecided", f"{pair.difference:+.3f}, {getattr(pair, 'method', 'no interval')}"
    else:
        low, high = interval
        reason = f"{pair.difference:+.3f}, {100 * (1 - error):.4g}% interval {low:+.3f} to {high:+.3f}"
        outcome = decide_bounds(requirement, low, high)
        if requirement.metric == NO_REGRESSION:
            outcome = "fails" if high < 0 else "holds"
            if outcome == "holds" and low < 0:
                reason += f"; a loss of up to {-low:.3f} is not ruled out"
        if pair.verdict == "the same" and requirement.metric == BETTER:
            outcome, reason = "fails", "every trajectory is the same"
    return Decision(
        requirement=requirement.text,
        of=of,
        outcome=outcome,
        measured=pair.difference,
        interval=interval,
        reason=reason,
    )
