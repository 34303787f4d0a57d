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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import chain, pairwise
from operator import and_
from statistics import fmean

from midstream.core.metrics import StepMetrics
from midstream.core.sequences import joined, trainable
from midstream.core.trajectory import Call, Trajectory

WARN_BELOW = 1.5  # tokens for each unique one
WARN_GAIN = 2.0  # how many times more another order of the prompt would make them: enough for a warning at step 1
_WORTH_MOVING = 1.1  # ... and enough to advise it
_SHOWN = 40  # characters of a line
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*?)[ \t#]*$", re.MULTILINE)

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The first place where the rows of one task differ.

    `place` says where in the prompt that is ("in 'Memory'"), "" behind it. `shared` tokens come before it. Prompts have
    `prompt_tokens` on average; `fixed_tokens` of those behind the place are estimated to be in lines that all
    of them hold. `texts` are the rows, `moved` the same with those lines before everything else.
    """

    place: str
    shared: int
    prompt_tokens: float
    fixed_tokens: float
    texts: tuple[str, ...]
    moved: tuple[str, ...]


def sharing_warning(metrics: StepMetrics, trajectories: Sequence[Trajectory], role: str, decode: Decode) -> str | None:
    """The warning about a step whose rows share too little; None if they share enough, or were not counted.

    Too little is below `WARN_BELOW`, or, at the first step only, far less than with another order of the prompt.
    """
    if metrics.sharing is None or (metrics.sharing >= WARN_BELOW and metrics.step > 1):
        return None
    tasks: dict[str, list[list[Call]]] = {}
    for trajectory in trajectories:
        calls = [call for call in trajectory.calls if call.role == role and trainable(call)]
        tasks.setdefault(trajectory.task_id, []).extend(joined(calls))
    found = [difference for runs in tasks.values() if (difference := first_difference(runs, decode))]
    if not found:
        return None
    gain = _unique_characters(part.texts for part in found) / _unique_characters(part.moved for part in found)
    if metrics.sharing >= WARN_BELOW and gain < WARN_GAIN:
        return None
    return (
        f"step {metrics.step}: the rows of the update hold only {metrics.sharing:.2f} tokens for each unique one. "
        f"{_advice(found, metrics.sharing, gain)}"
    )


def first_difference(runs: Sequence[Sequence[Call]], decode: Decode) -> Difference | None:
    """Where the rows of one task, each a run of `joined`, first differ; None if they are all the same."""
    prompts = {run[-1].prompt_ids + run[-1].completion_ids: run[0].prompt_ids for run in runs}  # by row
    if len(prompts) < 2:
        return None
    shared = _begin_alike(min(prompts), max(prompts))
    head = decode(next(iter(prompts))[:shared])
    rests = [decode(prompt[shared:]).splitlines(keepends=True) for prompt in prompts.values()]
    replies = [decode(row[max(shared, len(prompt)) :]) for row, prompt in prompts.items()]
    fixed = reduce(and_, map(Counter, rests))
    lines = "".join(fixed.elements())
    others = []  # the rest of each row without the lines that all have, in its order
    for rest in rests:
        left, kept = fixed.copy(), []
        for line in rest:
            if left[line]:
                left[line] -= 1
            else:
                kept.append(line)
        others.append("".join(kept))
    prompt_tokens = fmean(map(len, prompts.values()))
    share_fixed = len(lines) / max(1.0, len(lines) + fmean(map(len, others)))
    in_prompt = shared < min(map(len, prompts.values()))
    return Difference(
        place=_place(decode(min(prompts.values(), key=len)), len(head)) if in_prompt else "",
        shared=shared,
        prompt_tokens=prompt_tokens,
        fixed_tokens=share_fixed * (prompt_tokens - shared),
        texts=tuple(head + "".join(rest) + reply for rest, reply in zip(rests, replies, strict=True)),
        moved=tuple(lines + head + rest + reply for rest, reply in zip(others, replies, strict=True)),
    )


def _place(prompt: str, at: int) -> str:
    """The section that holds the character `at` of a prompt, by the heading above it, else by the line before it."""
    headings = [match[1] for match in _HEADING.finditer(prompt) if match.start() < at]
    if headings:
        return f"in {headings[-1][:_SHOWN]!r}"
    line = prompt[:at].rstrip().rpartition("\n")[2]
    return f"after {line[-_SHOWN:]!r}" if line else "at their very beginning"


def _unique_characters(texts: Iterable[Sequence[str]]) -> int:
    """Characters of texts with shared prefixes counted once."""
    ordered = sorted(chain.from_iterable(texts))
    return sum(map(len, ordered)) - sum(_begin_alike(one, other) for one, other in pairwise(ordered))


def _begin_alike(one: Sequence[int] | str, other: Sequence[int] | str) -> int:
    """Length of the common prefix of two rows."""
    different = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(different, min(len(one), len(other)))


def _advice(found: Sequence[Difference], sharing: float, gain: float) -> str:
    """Says where most tasks' rows first differ, and whether another order of the prompt would help."""
    worth_moving = gain >= _WORTH_MOVING
    places = Counter(difference.place for difference in found if difference.place or not worth_moving)
    [(place, _)] = places.most_common(1)
    alike = sorted((difference for difference in found if difference.place == place), key=lambda part: part.shared)
    typical = alike[len(alike) // 2]
    if not place:
        return (
            "The rows of a task share all of their prompt and first differ in what the policy wrote, "
            f"{typical.shared:,} tokens in: no other order of the prompt would save more."
        )
    tokens = f"{typical.shared:,} tokens into prompts of {typical.prompt_tokens:,.0f}"
    where = f"The rows of a task first differ {place}, {tokens}"
    if not worth_moving:
        return f"{where}; few lines after that are the same in all of them: no other order of these would save much."
    return (
        f"{where}, and about {typical.fixed_tokens:,.0f} tokens after that are the same in all of them. Put what is "
        f"fixed (instructions, tools) first and what changes last: that makes it about {sharing * gain:.1f} "
        "(docs/policy-update.md)."
    )
