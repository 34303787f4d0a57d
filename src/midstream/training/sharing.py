"""Find where the rows of a task first differ, to warn once of prompts that share too little.

The update computes shared prefixes once (`prefix_tree/tree.py`). Text after the first difference is computed for every
row, even if it is the same in all of them:

    You are the planner ...      equal in all rows of a task: computed once
    # Memory                     here they first differ
    {"turn":1,"action": ...
    # How to decide ...          equal again, but computed for every row: it belongs before the memory
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from midstream.core.metrics import StepMetrics
from midstream.core.sequences import joined, trainable
from midstream.core.trajectory import Call, Trajectory

WARN_BELOW = 1.5  # tokens for each unique one
_IN_REPLY = "in what the policy wrote"
_SHOWN = 40  # characters of a line
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*?)[ \t#]*$", re.MULTILINE)

Decode = Callable[[Sequence[int]], str]


def sharing_warning(metrics: StepMetrics, trajectories: Sequence[Trajectory], role: str, decode: Decode) -> str | None:
    """The warning about a step whose rows share too little; None if they share enough, or were not counted."""
    if metrics.sharing is None or metrics.sharing >= WARN_BELOW:
        return None
    tasks: dict[str, list[list[Call]]] = {}
    for trajectory in trajectories:
        calls = [call for call in trajectory.calls if call.role == role and trainable(call)]
        tasks.setdefault(trajectory.task_id, []).extend(joined(calls))
    places = [place for runs in tasks.values() if (place := first_difference(runs, decode))]
    if not places:
        return None
    [(where, _)] = Counter(where for where, _ in places).most_common(1)
    shared = sorted(tokens for place, tokens in places if place == where)
    differ = f"first differ {where}, {shared[len(shared) // 2]:,} tokens in"
    if where == _IN_REPLY:
        advice = f"share all of their prompt and {differ}: no other order of the prompt would save more."
    else:
        advice = f"{differ}. What is fixed (instructions, tools) belongs before it (docs/policy-update.md)."
    return (
        f"step {metrics.step}: the rows of the update hold only {metrics.sharing:.2f} tokens for each unique one. "
        f"The rows of a task {advice}"
    )


def first_difference(runs: Sequence[Sequence[Call]], decode: Decode) -> tuple[str, int] | None:
    """Where the rows of one task, each a run of `joined`, first differ, and after how many tokens; None if nowhere."""
    prompts = {run[-1].prompt_ids + run[-1].completion_ids: run[0].prompt_ids for run in runs}  # by row
    if len(prompts) < 2:
        return None
    # What the first and the last have in common all have.
    first, last = min(prompts), max(prompts)
    shared = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    if shared >= min(map(len, prompts.values())):
        return _IN_REPLY, shared
    before = decode(next(iter(prompts))[:shared])
    prompt = decode(min(prompts.values(), key=len))
    if headings := [match[1] for match in _HEADING.finditer(prompt) if match.start() < len(before)]:
        return f"in {headings[-1][:_SHOWN]!r}", shared
    line = before.rstrip().rpartition("\n")[2]
    return (f"after {line[-_SHOWN:]!r}" if line else "at their very beginning"), shared
