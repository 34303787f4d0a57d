"""A trajectory's calls as training sequences: calls that continue one another make one.

A planner is asked afresh in every turn, so each of its calls is a sequence. A policy that writes one stream is asked to
go on from all that is there:

    call 1   prompt | <think>..</think><python>..</python>
    call 2   prompt | <think>..</think><python>..</python><output>5</output> | <answer>5</answer>
    row      prompt | sampled .............................. not sampled .... | sampled .........

What the environment put in between is in the row, because the policy read it, and is marked as not sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

from midstream.core.protocols import Row
from midstream.core.trajectory import Call


def joined(calls: Sequence[Call]) -> list[list[Call]]:
    """The calls, in order, in runs of which each goes on exactly where the one before ended, at its temperature.

    Every call has token ids.
    """
    runs: list[list[Call]] = []
    for call in calls:
        if runs and _continues(runs[-1][-1], call):
            runs[-1].append(call)
        else:
            runs.append([call])
    return runs


def _continues(before: Call, after: Call) -> bool:
    there = before.prompt_ids + before.completion_ids
    return before.sampling.temperature == after.sampling.temperature and after.prompt_ids[: len(there)] == there


def row_of(run: Sequence[Call], *, advantage: float, kl_weight: float, trajectory_id: str) -> Row:
    """One run of `joined` as a row of weight 1: the first call's prompt, then everything after it."""
    prompt = run[0].prompt_ids
    ids: tuple[int, ...] = ()
    sampled: tuple[bool, ...] = ()
    logprobs: tuple[float, ...] = ()
    for call in run:
        appended = call.prompt_ids[len(prompt) + len(ids) :]
        ids += appended + call.completion_ids
        sampled += (False,) * len(appended) + (True,) * len(call.completion_ids)
        logprobs += (0.0,) * len(appended) + call.logprobs
    return Row(
        prompt_ids=prompt,
        completion_ids=ids,
        sampled=() if all(sampled) else sampled,
        old_logprobs=logprobs,
        advantage=advantage,
        weight=1.0,
        kl_weight=kl_weight,
        temperature=run[0].sampling.temperature or 1.0,  # greedy calls record log-probabilities at temperature 1
        trajectory_id=trajectory_id,
    )


def tokens_after_prompt(run: Sequence[Call]) -> int:
    """How long a run's row is without its prompt: sampled tokens and those in between."""
    return len(run[-1].prompt_ids) + len(run[-1].completion_ids) - len(run[0].prompt_ids)


def sampled_tokens(run: Sequence[Call]) -> int:
    """How many of them the policy drew."""
    return sum(len(call.completion_ids) for call in run)
