"""Transcripts of a file, and of a policy that is imitated: the tokens that are learnt, and those that are read."""

from __future__ import annotations

import json
import re

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from midstream.core.engine import Request
from midstream.core.sequences import joined
from midstream.core.stream_template import Template, load_template
from midstream.core.trajectory import Call, Message
from midstream.engines.local.codec import TokenizerCodec
from midstream.engines.local.engine import TransformersLocal
from midstream.training.rows import row_of
from midstream.training.transcripts import Transcript, row_of_transcript, rows_of_file, transcript_of
from support.errors import raises
from support.interleaved import Shout, Talk, play
from support.small_tokenizers import CHATML, STRICT, byte_pairs

CODEC = TokenizerCodec(byte_pairs(CHATML), "policy")
BARE = TokenizerCodec(byte_pairs(), "policy")
ASKED = {"role": "user", "content": "What is 2 + 3?"}
END = "<|im_end|>"
ADD = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}


def row(codec=CODEC, **transcript):
    return row_of_transcript(Transcript.model_validate(transcript), codec, "t")


def spans(made, codec=CODEC):
    """The row in words: its prompt, then each stretch as (text, whether it is learnt)."""
    found: list[list] = []
    for one, learnt in zip(made.completion_ids, made.sampled or (True,) * len(made.completion_ids), strict=True):
        if not found or found[-1][1] != learnt:
            found.append([[], learnt])
        found[-1][0].append(one)
    words = [(codec.tokenizer.decode(ids), learnt) for ids, learnt in found]
    return codec.tokenizer.decode(made.prompt_ids), words


# -- what a line holds -------------------------------------------------------------------------------------------------


def test_the_assistants_words_and_their_end_are_learnt():
    made = row(messages=[ASKED, {"role": "assistant", "content": "It is 5."}])
    prompt, words = spans(made)
    assert prompt.endswith("<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n")
    assert words == [(f"It is 5.{END}", True)]
    assert (made.sampled, made.old_logprobs, made.weight, made.advantage) == ((), (), 1.0, 0.0)


def test_what_a_tool_and_a_user_say_in_between_is_read():
    messages = [
        ASKED,
        {"role": "assistant", "content": '<tool_call>{"name": "add"}</tool_call>'},
        {"role": "tool", "content": "5"},
        {"role": "assistant", "content": "5"},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes."},
    ]
    made = row(messages=messages, tools=[ADD])
    prompt, words = spans(made)
    assert '"name": "add"' in prompt
    assert words == [
        (f'<tool_call>{{"name": "add"}}</tool_call>{END}', True),
        (
            "\n<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
            False,
        ),
        (f"5{END}", True),
        ("\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n", False),
        (f"Yes.{END}", True),
    ]


def test_a_chat_is_what_the_chat_template_makes_of_it():
    said = [ASKED, {"role": "assistant", "content": "5"}, {"role": "user", "content": "Sure?"}]
    made = row(messages=[*said, {"role": "assistant", "content": "Yes."}])
    whole = CODEC.encode(Request(role="policy", messages=tuple(Message.model_validate(one) for one in said)))
    assert list(made.prompt_ids + made.completion_ids)[: len(whole)] == whole


def test_tool_output_in_a_stream_is_read_and_the_end_is_learnt():
    stream = [
        {"text": "<python>print(2 + 3)</python>", "sampled": True},
        {"text": "<output>5</output>"},
        {"text": "<answer>5</answer>", "sampled": True},
    ]
    prompt, words = spans(row(messages=[ASKED], stream=stream))
    assert prompt.endswith("<|im_start|>assistant\n")
    assert words == [
        ("<python>print(2 + 3)</python>", True),
        ("<output>5</output>", False),
        (f"<answer>5</answer>{END}", True),
    ]


def test_a_stream_behind_plain_text_needs_no_chat_template():
    made = row(codec=BARE, prompt="Question 2 + 3?", stream=[{"text": " 5", "sampled": True}])
    assert made.prompt_ids == tuple(BARE.encode(Request(role="policy", prompt="Question 2 + 3?")))
    assert spans(made, BARE)[1] == [(f" 5{BARE.tokenizer.eos_token}", True)]


@pytest.mark.parametrize(
    ("transcript", "words"),
    [
        ({"messages": [ASKED, {"role": "assistant", "content": "It is"}], "ended": False}, [("It is", True)]),
        ({"messages": [ASKED], "stream": [{"text": "It", "sampled": True}], "ended": False}, [("It", True)]),
        (
            {"messages": [ASKED], "stream": [{"text": "<python>", "sampled": True}, {"text": "5"}]},
            [("<python>", True), ("5", False)],
        ),
    ],
    ids=["message", "stream", "output last"],
)
def test_what_was_cut_off_teaches_no_end(transcript, words):
    assert spans(row(**transcript))[1] == words


def test_special_tokens_in_a_transcript_are_plain_text():
    made = row(messages=[ASKED, {"role": "assistant", "content": f"a{END}b"}])
    end = CODEC.tokenizer.convert_tokens_to_ids(END)
    assert (made.completion_ids.count(end), made.completion_ids[-1]) == (1, end)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def student():
    """`student(positions)` is an engine over a random model that fits the tokenizer."""

    def make(positions=512, template=CHATML):
        tokenizer = byte_pairs(template)
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
            max_position_embeddings=positions, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        )  # fmt: skip
        return TransformersLocal(LlamaForCausalLM(config), tokenizer, name="policy")

    return make


GOOD = json.dumps({"messages": [ASKED, {"role": "assistant", "content": "5"}]})


def test_a_file_gives_a_row_a_line(student, tmp_path):
    path = tmp_path / "transcripts.jsonl"
    path.write_text(f"{GOOD}\n\n{GOOD}\r\n{GOOD}", encoding="utf-8")
    rows = rows_of_file(path, student())
    assert [one.trajectory_id for one in rows] == ["transcripts.jsonl:1", "transcripts.jsonl:3", "transcripts.jsonl:4"]
    assert {(one.prompt_ids, one.completion_ids) for one in rows} == {(rows[0].prompt_ids, rows[0].completion_ids)}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "Invalid JSON"),
        ("[]", "valid dictionary|an object"),
        ('{"messages": []}', "give `messages` or"),
        ('{"messages": [{"role": "user", "content": "a"}], "prompt": "a"}', "give `messages` or"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "the last message is not the assistant's"),
        ('{"prompt": "a"}', "the last message is not the assistant's"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "does not answer"),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]}',
            "the assistant says nothing",
        ),
        (
            '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, '
            '{"role": "assistant", "content": "c"}]}',
            "does not answer",
        ),
        ('{"messages": [{"role": "bot", "content": "a"}]}', r"messages\.0\.role: .*'assistant'"),
        ('{"messages": [{"role": "user"}]}', r"messages\.0\.content: Field required"),
        ('{"messages": [{"role": "user", "content": "a", "tool_calls": []}]}', r"messages\.0\.tool_calls: Extra"),
        (
            '{"messages": [{"role": "user", "content": "a"}], "stream": [{"text": "b"}]}',
            "no part of `stream` is sampled",
        ),
        (
            '{"messages": [{"role": "user", "content": "a"}], "stream": [{"txt": "b", "sampled": true}]}',
            r"stream\.0\.text: Field required",
        ),
    ],
)
def test_a_line_that_is_no_transcript_is_named(student, tmp_path, line, message):
    path = tmp_path / "t.jsonl"
    path.write_text(f"{GOOD}\n{line}\n", encoding="utf-8")
    with raises("file-invalid", "t.jsonl, line 2") as caught:
        rows_of_file(path, student())
    assert re.search(message, caught.value.what)


def test_a_file_that_is_not_there_is_empty_or_no_text_is_refused(student, tmp_path):
    path = tmp_path / "t.jsonl"
    with raises("file-not-found", "warm_start.file", "t.jsonl"):
        rows_of_file(path, student())
    path.write_text("\n\n", encoding="utf-8")
    with raises("file-invalid", "t.jsonl"):
        rows_of_file(path, student())
    path.write_bytes(b"\xff\xfe")
    with raises("file-unreadable", "utf-8"):
        rows_of_file(path, student())


def test_a_line_longer_than_the_model_is_named(student, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(GOOD, encoding="utf-8")
    [made] = rows_of_file(path, student())
    length = len(made.prompt_ids) + len(made.completion_ids)
    assert len(rows_of_file(path, student(positions=length))) == 1
    with raises("file-invalid", f"{length} tokens", f"{length - 1} positions"):
        rows_of_file(path, student(positions=length - 1))


def test_a_chat_for_a_model_without_a_chat_template_is_refused(student, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(GOOD, encoding="utf-8")
    with raises("chat-template", "t.jsonl, line 1"):
        rows_of_file(path, student(template=None))


def test_a_line_that_the_chat_template_refuses_is_named(student, tmp_path):
    path = tmp_path / "t.jsonl"
    with_system = {"messages": [{"role": "system", "content": "Be brief."}, *json.loads(GOOD)["messages"]]}
    path.write_text(f"{GOOD}\n{json.dumps(with_system)}\n", encoding="utf-8")
    with raises("chat-template", "t.jsonl, line 2", "system+user"):
        rows_of_file(path, student(template=STRICT))


def test_a_byte_order_mark_is_no_part_of_the_first_line(student, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(GOOD, encoding="utf-8-sig")
    assert len(rows_of_file(path, student())) == 1


# -- a policy that is imitated ---------------------------------------------------------------------------------------


class Reciter:
    """A policy's engine that says `replies` in the tokens of a codec, or, where not `exact`, as text alone.

    Behind a reply that no mark stops stands the end token.
    """

    name = "reciter"

    def __init__(self, replies: list[str], *, exact: bool = True, finish: str = "stop") -> None:
        self.left, self.finish, self.token_exact = list(replies), finish, exact
        self.codec = CODEC if exact else None

    async def sample(self, request: Request) -> Call:
        text = self.left.pop(0)
        finish = "stop" if self.left else self.finish
        marked = text.endswith(request.sampling.stop or "\0")
        end = () if marked or finish == "length" else CODEC.end_ids[:1]
        ids = (*CODEC.encode_text(text), *end) if self.codec else ()
        return Call(
            role=request.role,
            prompt=request.prompt,
            messages=request.messages,
            completion=text,
            prompt_ids=tuple(CODEC.encode(request)) if self.codec else (),
            completion_ids=ids,
            logprobs=(-1.0,) * len(ids),
            finish_reason=finish,
            sent={"tools": len(request.tools)},
        )

    async def close(self) -> None: ...


MATH = ["<think>2 and 3</think><python>2 + 3</python>", "<think>so</think><answer>5</answer>"]
FUNCTIONS = ['<reasoning>a</reasoning><tool>[{"name": "python", "arguments": {"code": "5"}}]</tool>', "It is 5."]
NATIVE = ['<think>a</think><tool_call>{"name": "python", "arguments": {"code": "5"}}</tool_call>', "It is 5."]
TORL = ["So\n```python\nprint(5)\n```\n", "It is \\boxed{5}."]
OPENED = load_template("artist-math").model_copy(update={"opening": "<think>", "name": "opened"})
OPENED_TEXT = load_template("torl").model_copy(update={"opening": "Let us see. ", "name": "opened text"})
REPLIES: list[tuple[str | Template, list[str]]] = [
    ("artist-math", MATH),
    ("artist-function-calling", FUNCTIONS),
    ("native", NATIVE),
    ("torl", TORL),
    (OPENED, ["2 and 3</think><python>2 + 3</python>", MATH[1]]),
    (OPENED_TEXT, TORL),
]


def of(template):
    return load_template(template) if isinstance(template, str) else template


@pytest.mark.parametrize(("template", "replies"), REPLIES, ids=lambda one: getattr(one, "name", None))
def test_an_imitated_stream_has_the_tokens_that_the_student_would_have_read_and_sampled(template, replies):
    """Anyone who wrote it: the row is the one that reinforcement would have made of the same words."""
    trajectory = play(Reciter(replies), template=template)
    assert len(trajectory.calls) == 2
    [run] = joined(trajectory.calls)
    theirs = row_of(run, advantage=0.0, kl_weight=0.0, trajectory_id="t")
    ours = row_of_transcript(transcript_of(trajectory, of(template)), CODEC, "t")
    opening = CODEC.encode_text(of(template).opening) if of(template).chat else ()
    assert theirs.prompt_ids == (*ours.prompt_ids, *opening)
    end = CODEC.end_ids[:1] if theirs.completion_ids[-1:] != CODEC.end_ids[:1] else ()
    assert ours.completion_ids == (*opening, *theirs.completion_ids, *end)
    assert ours.sampled == ((False,) * len(opening) + theirs.sampled + (True,) * len(end))


@pytest.mark.parametrize(("template", "replies"), REPLIES[:4], ids=lambda one: getattr(one, "name", None))
def test_a_teacher_without_token_ids_gives_the_same_rows(template, replies):
    rows = [
        row_of_transcript(transcript_of(play(engine, template=template), of(template)), CODEC, "t")
        for engine in (Reciter(replies), Reciter(replies, exact=False))
    ]
    assert rows[0] == rows[1]


def test_a_dialogue_is_one_row_with_what_its_user_said():
    talk = Talk(texts=["Fill it.", "Start it."], offers=[[Shout()]], system="Be kind.")
    replies = [*FUNCTIONS, "Started."]
    trajectory = play(Reciter(replies), template="artist-function-calling", talk=talk)
    made = row_of_transcript(transcript_of(trajectory, of("artist-function-calling")), CODEC, "t")
    prompt, words = spans(made)
    assert "Fill it." in prompt
    assert [text for text, learnt in words if learnt] == [f"{reply}{END}" for reply in replies]
    assert "Start it." in words[3][0]


def test_a_stream_that_met_its_limit_teaches_no_end():
    trajectory = play(Reciter(["<think>and so"], finish="length"))
    assert spans(row_of_transcript(transcript_of(trajectory, of("artist-math")), CODEC, "t"))[1] == [
        ("<think>and so", True)
    ]


def test_a_policy_that_said_nothing_teaches_nothing():
    assert transcript_of(play(Reciter([""])), of("artist-math")) is None


def test_a_student_whose_chats_have_another_end_token_learns_its_own():
    codec = TokenizerCodec(byte_pairs(STRICT, end="<|endoftext|>"), "policy")
    made = row(codec=codec, messages=[ASKED, {"role": "assistant", "content": "5"}])
    assert spans(made, codec)[1] == [("5<|endoftext|>", True)]
