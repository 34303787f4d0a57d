"""One call: what it sent and what changed since the call before it of the same role, and its tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any

from midstream.core.errors import UsageError
from midstream.core.sequences import joined, splits, trainable
from midstream.core.trajectory import Call, Trajectory
from midstream.runs import RunDirectory
from midstream.view.vocabulary import token_texts

_COMPARED_LINES = 3_000  # of a message; longer ones are shown as old and new
Message = tuple[str, str]  # role, text


def find_call(trajectory: Trajectory, number: int) -> Call:
    """The call with this number, from 0, of the whole trajectory. Raises `UsageError` if it has none."""
    if number < len(trajectory.calls):
        return trajectory.calls[number]
    what = f"the trajectory has no call {number + 1}"
    raise UsageError(what, code="unknown-name", fix="go up to the trajectory, which has its calls")


def call_document(trajectory: Trajectory, number: int) -> dict[str, Any]:
    """The messages of a call by pieces, each the same as in the previous call of its role, new, or gone."""
    call = find_call(trajectory, number)
    same_role = [at for at, other in enumerate(trajectory.calls[:number]) if other.role == call.role]
    before = trajectory.calls[same_role[-1]] if same_role else None
    sampling = call.sampling.model_dump(exclude_defaults=True)
    return {
        "n": number,
        "role": call.role,
        "previous": same_role[-1] if same_role else None,
        "messages": list(_compared(_messages(before) if before else [], _messages(call), known=before is not None)),
        "settings": {**call.sent, **sampling},
    }


def tokens_document(
    trajectory: Trajectory,
    number: int,
    run: RunDirectory,
    resolved: Mapping[str, Any],
    *,
    trained: str,
    advantage: float | None,
) -> dict[str, Any]:
    """The tokens of a call with their log-probabilities, and its training row."""
    call = find_call(trajectory, number)
    texts = token_texts(run, resolved, call)
    row, rows, split = _row(trajectory, number, call)
    logprobs = [*call.logprobs, *[None] * len(call.completion_ids)][: len(call.completion_ids)]
    return {
        "n": number,
        "prompt": [[token, texts and texts(token), None] for token in call.prompt_ids],
        "sampled": [
            [token, texts and texts(token), logprob]
            for token, logprob in zip(call.completion_ids, logprobs, strict=True)
        ],
        "row": row,
        "rows": rows,
        "split": split,
        "advantage": advantage if call.role == trained else None,
        "trained": bool(trained) and call.role == trained and trainable(call),
        "texts": texts is not None,
    }


def _messages(call: Call) -> list[Message]:
    """The messages that a call sent, with what role and content do not hold as JSON; a completion's prompt as one."""
    if not call.messages:
        return [("prompt", call.prompt)] if call.prompt else []
    found = []
    for message in call.messages:
        fields = json.dumps(message.fields, ensure_ascii=False, indent=1) if message.fields else ""
        found.append((message.role, "\n".join(filter(None, (message.content, fields)))))
    return found


def _compared(old: list[Message], new: list[Message], *, known: bool) -> Iterator[dict[str, Any]]:
    """The new messages, and the old ones that are gone, in their order."""
    if not known:
        yield from (_message(role, [("same", text)]) for role, text in new)
        return
    for op, old_from, old_to, new_from, new_to in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        before, after = old[old_from:old_to], new[new_from:new_to]
        if op == "equal":
            yield from (_message(role, [("same", text)]) for role, text in after)
            continue
        for place in range(max(len(before), len(after))):
            was, now = before[place : place + 1], after[place : place + 1]
            if was and now and was[0][0] == now[0][0]:
                yield _message(now[0][0], _pieces(was[0][1], now[0][1]))
                continue
            yield from (_message(role, [("gone", text)]) for role, text in was)
            yield from (_message(role, [("new", text)]) for role, text in now)


def _pieces(old: str, new: str) -> list[tuple[str, str]]:
    """A text by lines against an older one."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    same = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), None)
    same = min(len(before), len(after)) if same is None else same
    left, right = before[same:], after[same:]
    pieces = [("same", "".join(after[:same]))]
    if max(len(left), len(right)) > _COMPARED_LINES:
        pieces += [("gone", "".join(left)), ("new", "".join(right))]
    else:
        for op, old_from, old_to, new_from, new_to in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
            if op == "equal":
                pieces.append(("same", "".join(right[new_from:new_to])))
            else:
                pieces += [("gone", "".join(left[old_from:old_to])), ("new", "".join(right[new_from:new_to]))]
    return [piece for piece in pieces if piece[1]]


def _message(role: str, pieces: list[tuple[str, str]]) -> dict[str, Any]:
    return {"role": role, "pieces": [{"op": op, "text": text} for op, text in pieces]}


def _row(trajectory: Trajectory, number: int, call: Call) -> tuple[int | None, int, str]:
    """The row of training, from 0, that a call is in, how many rows its role has, and why the call began its own."""
    if not trainable(call):
        return None, 0, ""
    every = trajectory.calls
    numbers = [at for at, each in enumerate(every) if each.role == call.role and trainable(each)]
    ours = [every[at] for at in numbers]
    rows = joined(ours)
    row = next((at for at, row in enumerate(rows) if any(each is every[number] for each in row)), None)
    for split in splits(ours):
        if numbers[split.call] == number:
            shared = f"after {split.shared:,} tokens that call {numbers[split.of] + 1} has, too"
            return row, len(rows), f"{split.why}: {shared}"
    return row, len(rows), ""
