"""One call: what it sent and what changed since the call before it of the same role, and its tokens.

The texts of tokens come from a `tokenizer.json`, read without the libraries that made it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from midstream.core.errors import UsageError
from midstream.core.sequences import joined, splits, trainable
from midstream.core.trajectory import Call, Trajectory
from midstream.report.blocks import Block
from midstream.runs import RunDirectory

_COMPARED_LINES = 3_000  # of a message; longer ones are shown as old and new
_LARGEST = 64 << 20  # bytes of a tokenizer's file
# GPT-2's table: byte-level BPE writes each byte as a printable character.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTES = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}
Message = tuple[str, str]  # role, text


def find_call(trajectory: Trajectory, number: int) -> Call:
    """The call with this number, from 0, of the whole trajectory. Raises `UsageError` if it has none."""
    if number < len(trajectory.calls):
        return trajectory.calls[number]
    what = f"the trajectory has no call {number + 1}"
    raise UsageError(what, code="unknown-name", fix="go up to the trajectory, which has its calls")


def call_document(trajectory: Trajectory, number: int) -> Block:
    """The messages of a call by pieces, each the same as in the previous call of its role, new, or gone."""
    call = find_call(trajectory, number)
    same_role = [at for at, other in enumerate(trajectory.calls[:number]) if other.role == call.role]
    # The first of a role has nothing new.
    before = trajectory.calls[same_role[-1]] if same_role else call
    sampling = call.sampling.model_dump(exclude_defaults=True)
    return {
        "n": number,
        "role": call.role,
        "previous": same_role[-1] if same_role else None,
        "messages": list(_compared(_messages(before), _messages(call))),
        "settings": {**call.sent, **sampling},
    }


def tokens_document(
    trajectory: Trajectory,
    number: int,
    run: RunDirectory,
    resolved: Mapping[str, Any],
    trained: Collection[str],
    advantage: float | None,
) -> Block:
    """The tokens of a call with their log-probabilities, and its training row; `trained` are the roles that are."""
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
        "advantage": advantage if call.role in trained else None,
        "trained": call.role in trained and trainable(call),
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
    if call.reply:
        # With its reasoning, and what was asked for besides a text.
        found.append(("answer of the server", json.dumps(call.reply, ensure_ascii=False, indent=1)))
    return found


def _compared(old: list[Message], new: list[Message]) -> Iterator[Block]:
    """The new messages, and the old ones that are gone, in their order."""
    for op, old_from, old_to, new_from, new_to in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if op == "equal":
            yield from (_message(role, [("same", text)]) for role, text in new[new_from:new_to])
            continue
        for was, now in zip_longest(old[old_from:old_to], new[new_from:new_to]):
            if was and now and was[0] == now[0]:
                yield _message(now[0], _pieces(was[1], now[1]))
                continue
            if was:
                yield _message(was[0], [("gone", was[1])])
            if now:
                yield _message(now[0], [("new", now[1])])


def _pieces(old: str, new: str) -> list[tuple[str, str]]:
    """A text by lines against an older one."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    # Most prompts only grow at their end, and the comparison below takes quadratic time.
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
    left, right = before[same:], after[same:]
    pieces = [("same", "".join(after[:same]))]
    compared = SequenceMatcher(None, left, right, autojunk=False)
    long = max(len(left), len(right)) > _COMPARED_LINES
    changes = [("replace", 0, len(left), 0, len(right))] if long else compared.get_opcodes()
    for op, old_from, old_to, new_from, new_to in changes:
        gone, there = "".join(left[old_from:old_to]), "".join(right[new_from:new_to])
        pieces += [("same", there)] if op == "equal" else [("gone", gone), ("new", there)]
    return [piece for piece in pieces if piece[1]]


def _message(role: str, pieces: list[tuple[str, str]]) -> Block:
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


# --- texts of tokens --------------------------------------------------------------------------------------------------


def token_texts(run: RunDirectory, resolved: Mapping[str, Any], call: Call) -> Callable[[int], str | None] | None:
    """A function from token id to text, None for one that is unknown; None if no vocabulary is at hand.

    It is that of the weights that the run exported, or of the model directory on this machine that the call's engine
    names.
    """
    engine = (resolved.get("engines") or {}).get(call.engine) or {}
    model = engine.get("model")
    places = [run.policy_dir, *([Path(model)] if isinstance(model, str) and Path(model).is_dir() else [])]
    for place in places:
        path = place / "tokenizer.json"
        if path.is_file() and path.stat().st_size <= _LARGEST:
            try:
                return _vocabulary(str(path), path.stat().st_mtime_ns).get
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue
    return None


@lru_cache(maxsize=2)
def _vocabulary(path: str, changed: int) -> dict[int, str]:
    """The text of each token of a `tokenizer.json`; raises as reading JSON of another form does."""
    table = from_json(Path(path).read_bytes())
    model, decoder = table["model"], str(table.get("decoder"))
    vocabulary = model["vocab"]
    pairs = (
        vocabulary.items() if isinstance(vocabulary, dict) else ((word, at) for at, (word, _) in enumerate(vocabulary))
    )
    if "ByteLevel" in decoder:
        texts = {at: bytes(_BYTES.get(letter, 63) for letter in word).decode("utf-8", "replace") for word, at in pairs}
    else:
        texts = {at: word.replace("▁", " ") for word, at in pairs}
    return texts | {token["id"]: token["content"] for token in table.get("added_tokens", ())}
