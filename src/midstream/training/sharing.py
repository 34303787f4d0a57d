"""Where the rows of a task stop beginning alike, told once to whoever trains on prompts that share too little.

The update computes once what rows begin with alike (`prefix_tree/tree.py`). What stands behind the first difference is
computed for every row, be it the same text:

    You are the planner ...      alike in all rows of a task: computed once
    # Memory                     here they first differ
    {"turn":1,"action": ...
    # How to decide ...          alike again, computed again for every row: it belongs before the memory
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
from midstream.core.trajectory import Call, Trajectory
from midstream.training.rows import joined

WARN_BELOW = 1.5  # tokens for each unique one
WARN_GAIN = 2.0  # how many times more another order of the prompt would make them: enough to warn of at a first step
_WORTH_MOVING = 1.1  # ... and enough to advise it
_SHOWN = 40  # characters of a line
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*?)[ \t#]*$", re.MULTILINE)

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The first place where the rows of one task differ.

    `place` says where in the prompt that is ("in 'Memory'"), "" behind it. `shared` tokens come before it. Prompts have
    `prompt_tokens` on average; `fixed_tokens` of those behind the place are lines that all of them hold, as far as
    lines tell. `texts` are the rows, `moved` the same with those lines before everything else.
    """

    place: str
    shared: int
    prompt_tokens: float
    fixed_tokens: float
    texts: tuple[str, ...]
    moved: tuple[str, ...]


def sharing_warning(metrics: StepMetrics, trajectories: Sequence[Trajectory], role: str, decode: Decode) -> str | None:
    """What to tell of a step whose rows share too little; None if they share enough, or were not counted.

    That is below `WARN_BELOW`, or, asked at the first step alone, far less than they would in another order.
    """
    if metrics.sharing is None or (metrics.sharing >= WARN_BELOW and metrics.step > 1):
        return None
    tasks: dict[str, list[list[Call]]] = {}
    for one in trajectories:
        calls = [call for call in one.calls if call.role == role and call.prompt_ids and call.completion_ids]
        tasks.setdefault(one.task_id, []).extend(joined(calls))
    found = [difference for runs in tasks.values() if (difference := first_difference(runs, decode))]
    if not found:
        return None
    gain = _unique_characters(one.texts for one in found) / _unique_characters(one.moved for one in found)
    if metrics.sharing >= WARN_BELOW and gain < WARN_GAIN:
        return None
    said = f"step {metrics.step}: the rows of the update hold only {metrics.sharing:.2f} tokens for each unique one"
    return f"{said}. {_advice(found, metrics.sharing, gain)}"


def first_difference(runs: Sequence[Sequence[Call]], decode: Decode) -> Difference | None:
    """Of the rows of one task, each a run of `sequences.joined`; None if they are all the same."""
    prompts = {run[-1].prompt_ids + run[-1].completion_ids: run[0].prompt_ids for run in runs}  # by row
    if len(prompts) < 2:
        return None
    shared = _begin_alike(min(prompts), max(prompts))
    head = decode(next(iter(prompts))[:shared])
    rests = [decode(prompt[shared:]).splitlines(keepends=True) for prompt in prompts.values()]
    replies = [decode(row[max(shared, len(prompt)) :]) for row, prompt in prompts.items()]
    fixed = reduce(and_, map(Counter, rests))
    lines = "".join(fixed.elements())
    others = [_without(rest, fixed) for rest in rests]
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


def _without(lines: Sequence[str], fixed: Counter[str]) -> str:
    """What is left of lines, in their order, when `fixed` are taken out."""
    left = fixed.copy()
    kept = []
    for line in lines:
        if left[line]:
            left[line] -= 1
        else:
            kept.append(line)
    return "".join(kept)


def _place(prompt: str, at: int) -> str:
    """The section that holds the character `at` of a prompt, by the heading above it, else by the line before it."""
    headings = [match[1] for match in _HEADING.finditer(prompt) if match.start() < at]
    if headings:
        return f"in {headings[-1][:_SHOWN]!r}"
    line = prompt[:at].rstrip().rpartition("\n")[2]
    return f"after {line[-_SHOWN:]!r}" if line else "at their very beginning"


def _unique_characters(texts: Iterable[Sequence[str]]) -> int:
    """Characters of texts where what they begin with alike is there once."""
    ordered = sorted(chain.from_iterable(texts))
    return sum(map(len, ordered)) - sum(_begin_alike(one, other) for one, other in pairwise(ordered))


def _begin_alike(one: Sequence[int] | str, other: Sequence[int] | str) -> int:
    """How many tokens or characters two rows begin with alike."""
    different = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(different, min(len(one), len(other)))


def _advice(found: Sequence[Difference], sharing: float, gain: float) -> str:
    """Where most tasks' rows first differ, and whether another order of the prompt would help."""
    worth_moving = gain >= _WORTH_MOVING
    [(place, _)] = Counter(one.place for one in found if one.place or not worth_moving).most_common(1)
    alike = sorted((one for one in found if one.place == place), key=lambda one: one.shared)
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
