"""Calls as sequences of tokens: which continue one another, and why a call does not continue what came before it.

A session of an agent is many calls, each with its whole prompt. Of three calls of one conversation and one of a
sub-agent in between, two rows are made:

    call 1   prompt | reply 1                                      row 1
    call 2   prompt of the sub-agent | reply 2                     row 2
    call 3   prompt | reply 1 | tool output | reply 3              row 1
    call 4   prompt | reply 1 | tool output | reply 3 | question | reply 4     row 1

If the agent had sent reply 1 without its thoughts in call 3, call 3 would have begun a row of its own: a split.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from midstream.core.trajectory import Call

Why = Literal[
    "another conversation",  # the system message or the first user message differs
    "branch",  # two calls continue the same point
    "history changed",  # an earlier message was removed or edited
    "reply changed",  # the sampled message came back otherwise: without thoughts, with another tool call, trimmed
    "tools changed",  # the request lists other tools
    "temperature changed",
    "tokens changed",  # the same messages have other tokens: the chat template, or text that was tokenized again
]
_SIZE = array("q").itemsize  # bytes of a token
_REPLY_OPENING = 8  # tokens: the most with which a chat template opens a reply ("<|im_start|>assistant\n<think>\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """A call that begins a row although it begins with tokens of an earlier call.

    `call` and `of` are their places, from 0, among the calls given; `of` is the earlier call whose prompt and reply
    have the most tokens in common with the prompt of `call`, namely the first `shared`.
    """

    call: int
    of: int
    shared: int
    why: Why


def trainable(call: Call) -> bool:
    """Return whether training can use the call: its agent received a reply, whose tokens the engine recorded."""
    return bool(call.delivered and call.error is None and call.prompt_ids and call.completion_ids and call.logprobs)


def joined(calls: Sequence[Call]) -> list[list[Call]]:
    """Calls, all with token ids, in runs of which each call continues the one before it: the rows of training.

    A call continues the longest sequence, prompt and reply, that its prompt begins with, that was sampled at its
    temperature, and that no call continues yet. So every call is in one run. Of two calls that continue one point the
    second begins a run, and so do concurrent conversations. Runs are in the order of their first calls.
    """
    return [[calls[place] for place in run] for run in _runs(calls)]


def splits(calls: Sequence[Call]) -> list[Split]:
    """Each call, all with token ids, that begins a run of `joined` although an earlier call shares its first tokens."""
    begins = {run[0] for run in _runs(calls)}
    found = []
    earlier: list[bytes] = []  # the sequences of the calls before, sorted
    places: list[int] = []  # of these calls
    for place, call in enumerate(calls):
        prompt = _bytes(call.prompt_ids)
        if place in begins:
            # What has most in common with the prompt sorts next to it. Of several the latest is taken.
            at = bisect_right(earlier, prompt)
            shared = max((_alike(prompt, near) for near in earlier[max(0, at - 1) : at + 1]), default=0)
            if shared:
                alike = prompt[: shared * _SIZE]
                first = bisect_left(earlier, alike)
                last = bisect_left(earlier, alike + b"\xff" * _SIZE)  # behind every next token
                of = max(places[first:last])
                whole = _longest_begin(earlier, prompt)
                extended = None if whole is None else calls[places[whole]]
                found.append(Split(call=place, of=of, shared=shared, why=_why(call, calls[of], shared, extended)))
        at = bisect_right(earlier, sequence := _sequence(call))
        earlier.insert(at, sequence)
        places.insert(at, place)
    return found


def _runs(calls: Sequence[Call]) -> list[list[int]]:
    """The runs of `joined`, as places among the calls."""
    runs: list[list[int]] = []
    # By temperature, the sequences that no call continues yet, sorted, and the run of each: of 1,000 open ends only a
    # few are compared with a prompt.
    opened: dict[float, tuple[list[bytes], list[int]]] = {}
    for place, call in enumerate(calls):
        ends, numbers = opened.setdefault(call.sampling.temperature, ([], []))
        at = _longest_begin(ends, _bytes(call.prompt_ids))
        if at is None:
            number = len(runs)
            runs.append([])
        else:
            ends.pop(at)
            number = numbers.pop(at)
        runs[number].append(place)
        at = bisect_right(ends, sequence := _sequence(call))
        ends.insert(at, sequence)
        numbers.insert(at, number)
    return runs


def _longest_begin(ordered: Sequence[bytes], prompt: bytes) -> int | None:
    """The place of the longest of the sorted sequences that `prompt` begins with; of equal ones the last."""
    while at := bisect_right(ordered, prompt):
        near = ordered[at - 1]
        if prompt.startswith(near):
            return at - 1
        # What lies between two sequences that begin alike begins like them: a shorter one is a beginning of `near` too.
        prompt = prompt[: _alike(prompt, near) * _SIZE]
    return None


def _why(ours: Call, theirs: Call, shared: int, extended: Call | None) -> Why:
    """Return why `ours` does not continue `theirs`, whose first tokens it shares; it begins with `extended`."""
    if extended is not None:
        return "branch" if extended.sampling.temperature == ours.sampling.temperature else "temperature changed"
    if shared == len(ours.prompt_ids):
        # The same was asked again, or an earlier point.
        return "branch"
    new, old = ours.messages, theirs.messages
    if not new or not old:
        same_text = theirs.prompt and ours.prompt.startswith(theirs.prompt)
        return "tokens changed" if same_text else "another conversation"
    shorter = min(len(new), len(old))
    same = next((at for at in range(shorter) if new[at] != old[at]), shorter)  # messages
    if same < shorter and not any(message.role == "user" for message in new[:same]):
        return "another conversation"
    if shared < len(theirs.prompt_ids) and ours.sent.get("tools") != theirs.sent.get("tools"):
        return "tools changed"
    if same == len(new):
        return "tokens changed" if same == len(old) else "branch"
    if same < len(old):
        # Behind a branch nothing was sampled yet; a history that was edited has replies of its own.
        return "history changed" if any(one.role == "assistant" for one in (*new[same:], old[same])) else "branch"
    if new[same].role != "assistant":
        # The reply is gone.
        return "history changed"
    back = new[same]
    intact = back.content.strip() == theirs.completion.strip() and not back.fields.get("tool_calls")
    in_reply = shared >= len(theirs.prompt_ids) - _REPLY_OPENING
    return "reply changed" if in_reply and not intact else "tokens changed"


def _sequence(call: Call) -> bytes:
    return _bytes(call.prompt_ids + call.completion_ids)


def _bytes(ids: Sequence[int]) -> bytes:
    return array("q", ids).tobytes()


def _alike(one: bytes, other: bytes) -> int:
    """Return the number of tokens that two sequences share at their beginning."""
    sizes = range(_SIZE, min(len(one), len(other)) + 1, _SIZE)
    return bisect_left(sizes, True, key=lambda size: one[:size] != other[:size])
