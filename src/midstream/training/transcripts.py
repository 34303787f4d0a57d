"""Transcripts as supervised rows: the text that a policy learns to write, and the text in between that it only reads.

A transcript is a line of a user's JSONL file, or an interleaved trajectory of a policy that is imitated:

    {"messages": [{"role": "user", "content": "2 + 3?"}, {"role": "assistant", "content": "5"}]}
    {"messages": [{"role": "user", "content": "2 + 3?"}],
     "stream": [{"text": "<python>print(2 + 3)</python>", "sampled": true}, {"text": "<output>5</output>"},
                {"text": "<answer>5</answer>", "sampled": true}]}

The policy learns the assistant's messages, or the sampled parts of the stream, and the end token after each message,
or after the whole stream. They are tokenized from text: nothing was sampled from the policy that learns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Self, cast

from pydantic import JsonValue, ValidationError, model_validator

from midstream.core.data import Frozen, problems_of
from midstream.core.engine import Request
from midstream.core.errors import RecipeError, name_place
from midstream.core.stream import POLICY, Piece, stream_of
from midstream.core.stream_template import Template
from midstream.core.text_file import read_text
from midstream.core.trajectory import Message, Trajectory
from midstream.engines.local.codec import TokenizerCodec
from midstream.training.protocols import Row, Student

_MAX_CHARACTERS = 1 << 28  # of a file, which is read whole
_PROMPTED = ("planner", "executor", "verifier", "generator")


class Transcript(Frozen):
    """A chat, or a prompt and the stream that followed.

    The prompt is `messages`, or plain text in `prompt` for a model without a chat template. Without `stream`, the chat
    ends with an assistant's message. `tools` are offered in the chat template's own form. `ended` False: the last
    sampled text was cut off, so no end is learned from it.
    """

    messages: tuple[Message, ...] = ()
    prompt: str = ""
    stream: tuple[Piece, ...] = ()
    tools: tuple[dict[str, JsonValue], ...] = ()
    ended: bool = True

    @model_validator(mode="after")
    def _can_be_learned(self) -> Self:
        roles = [message.role for message in self.messages]
        if bool(self.messages) == bool(self.prompt):
            raise ValueError("give `messages` or, for a model without a chat template, `prompt`")
        if self.stream:
            if not any(part.sampled and part.text for part in self.stream):
                raise ValueError("no part of `stream` is sampled: there is nothing to learn")
        elif roles[-1:] != ["assistant"]:
            raise ValueError("the last message is not the assistant's: there is nothing to learn")
        elif ("assistant", "assistant") in pairwise(["assistant", *roles]):
            raise ValueError("a message of the assistant does not answer another's message")
        elif not any(message.content for message in self.messages if message.role == "assistant"):
            raise ValueError("the assistant says nothing: there is nothing to learn")
        return self


def read_transcripts(path: Path) -> Iterator[tuple[int, Transcript]]:
    """Each transcript of a JSONL file with its line number; `RecipeError` names a line that is not a transcript."""
    text = read_text(path, fix="correct warm_start.file", limit=_MAX_CHARACTERS)
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield number, Transcript.model_validate_json(line)
        except ValidationError as failure:
            raise RecipeError(
                f"{path}, line {number}: {problems_of(failure)[0]}",
                code="file-invalid",
                fix='e.g. {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}',
            ) from failure


def rows_of_file(path: Path, student: Student) -> list[Row]:
    """A row of every line, tokenized as the `student` would tokenize it: the engine of the weights that learn.

    Raises `RecipeError` if the file is empty, or a line is not a transcript, does not fit the model's chat template, or
    is longer than the model's context.
    """
    limit, rows = student.positions, []
    for number, transcript in read_transcripts(path):
        with name_place(f"{path}, line {number}"):
            row = row_of_transcript(transcript, student.codec, f"{path.name}:{number}")
        if limit is not None and row.length > limit:
            raise RecipeError(
                f"{path}, line {number} has {row.length} tokens; the model has {limit} positions",
                code="file-invalid",
                fix="take the line out, or name a model with a longer context",
            )
        rows.append(row)
    if not rows:
        raise RecipeError(
            f"{path} holds no transcript", code="file-invalid", fix="write one JSON object a line into it"
        )
    return rows


def transcript_of(trajectory: Trajectory, template: Template) -> Transcript | None:
    """The text that an interleaved policy wrote and read in a run; None if it wrote nothing."""
    calls = [call for call in trajectory.calls if call.role == POLICY]
    if not any(call.completion for call in calls):
        return None
    first, last = calls[0], calls[-1]
    # `Interleaved` records the tools where the template offers them in the model's form.
    offered = first.sent.get("tools")
    tools = tuple(tool for tool in offered if isinstance(tool, dict)) if isinstance(offered, list) else ()
    ended = last.finish_reason != "length"
    if template.appends == "message":
        reply = Message(role="assistant", content=last.completion)
        return Transcript(messages=(*last.messages, reply), tools=tools, ended=ended)
    pieces = stream_of(trajectory)
    if not template.chat:
        return Transcript(prompt=first.prompt, stream=tuple(pieces), ended=ended)
    opening = [Piece(text=template.opening)] if template.opening else []
    asked = first.messages[:-1] if first.messages[-1].role == "assistant" else first.messages
    return Transcript(messages=asked, stream=(*opening, *pieces), ended=ended)


def rows_of_replies(trajectory: Trajectory, student: Student, roles: Collection[str]) -> list[Row]:
    """One row for each delivered reply of the modules `roles`, tokenized from text: nothing was sampled by the student.

    A reply that was cut off has no end, and teaches none; an empty one makes no row.
    """
    tokenizer, rows = student.tokenizer, []
    for call in trajectory.calls:
        if call.role not in roles or not call.delivered:
            continue
        end = () if call.finish_reason == "length" else (cast(int, tokenizer.eos_token_id),)
        completion = (*tokenizer.encode(call.completion, add_special_tokens=False), *end)
        # A prompted module's reply, of which midstream wrote the opening.
        begun = call.role in _PROMPTED and bool(call.messages) and call.messages[-1].role == "assistant"
        request = Request(role=call.role, messages=call.messages, prompt=call.prompt, continues=begun)
        if completion:
            rows.append(supervised_row(student.codec.encode(request), completion, trajectory.id))
    return rows


def row_of_transcript(transcript: Transcript, codec: TokenizerCodec, name: str) -> Row:
    """The supervised row of a transcript: `sampled` marks the tokens to learn."""
    messages = transcript.messages
    parts: list[tuple[tuple[int, ...], bool]] = []  # token ids; whether they are learned
    if transcript.stream:
        parts = [(codec.encode_text(part.text), part.sampled) for part in transcript.stream]
        if transcript.ended and transcript.stream[-1].sampled:
            parts.append((codec.end_ids[:1], True))
    else:
        stretches: Sequence[tuple[bool, list[Message]]] = [
            (by, list(of)) for by, of in groupby(messages, lambda message: message.role == "assistant")
        ]
        messages = tuple(stretches[0][1])
        for place, (by_assistant, stretch) in enumerate(stretches[1:], start=2):
            if by_assistant:
                end = codec.end_ids[:1] if place < len(stretches) or transcript.ended else ()
                parts.append(((*codec.encode_text(stretch[0].content), *end), True))
            else:
                parts.append((codec.encode_reply(stretch, ended=True), False))
    asked = Request(role=POLICY, messages=messages, prompt=transcript.prompt, tools=transcript.tools)
    sampled = tuple(learned for ids, learned in parts for _ in ids)
    completion = tuple(token for ids, _ in parts for token in ids)
    return supervised_row(codec.encode(asked), completion, name, () if all(sampled) else sampled)


def supervised_row(
    prompt_ids: Sequence[int], completion_ids: tuple[int, ...], name: str, sampled: tuple[bool, ...] = ()
) -> Row:
    """A row of weight 1 without log-probabilities: nothing was sampled from the policy that learns."""
    return Row(
        prompt_ids=tuple(prompt_ids),
        completion_ids=completion_ids,
        sampled=sampled,
        old_logprobs=(),
        advantage=0.0,
        weight=1.0,
        kl_weight=0.0,
        trajectory_id=name,
    )
