"""Token ids of prompts, of what is put into a stream and of what a chat puts between two replies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.engine import Codec, Request
from midstream.core.trajectory import Message
from midstream.engines.local.codec import TokenizerCodec
from support.errors import raises
from support.small_tokenizers import CHATML, FORGETFUL, HEADERS, SPECIAL, STRICT, byte_pairs, sentence_pieces

PLAIN = TokenizerCodec(byte_pairs(), "policy")
PIECES = TokenizerCodec(sentence_pieces(), "policy")
CHATS = {
    "chatml": TokenizerCodec(byte_pairs(CHATML), "policy"),
    "headers": TokenizerCodec(byte_pairs(HEADERS, end="<|eot|>"), "policy"),
    "strict": TokenizerCodec(byte_pairs(STRICT, end="<|endoftext|>"), "policy"),
    "forgetful": TokenizerCodec(byte_pairs(FORGETFUL), "policy"),
}
ASKED = (Message(role="user", content="How high is it ?"),)
ADD = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}


def messages(*said: tuple[str, str]) -> tuple[Message, ...]:
    return tuple(Message.model_validate({"role": role, "content": content}) for role, content in said)


def chat(codec: Codec, *said: Message, **more) -> tuple[int, ...]:
    return tuple(codec.encode(Request(role="policy", messages=said, **more)))


def text_of(codec: TokenizerCodec, ids) -> str:
    return codec.tokenizer.decode(list(ids))


# -- text ------------------------------------------------------------------------------------------------------------


def test_ids_that_are_given_are_the_prompt():
    given_ids = Request(role="policy", prompt="something else", messages=ASKED, prompt_ids=(5, 6, 7))
    assert PLAIN.encode(given_ids) == [5, 6, 7]
    assert PLAIN.encode(Request(role="policy", prompt="How")) == PLAIN.tokenizer.encode("How")


@given(st.lists(st.text(max_size=6) | st.sampled_from([*SPECIAL, "<output>", "<tool_call>"]), max_size=6).map("".join))
def test_text_in_a_stream_has_no_special_tokens_and_is_what_it_says(text: str):
    ids = PLAIN.encode_text(text)
    assert not set(ids) & set(PLAIN.tokenizer.convert_tokens_to_ids(list(SPECIAL)))
    assert PLAIN.decode(ids) == text


@pytest.mark.parametrize("role", ["user", "tool"])
def test_text_of_a_user_or_tool_cannot_become_a_special_token(role):
    codec, marked = CHATS["headers"], "a" + "".join(SPECIAL) + "b"
    ids, plain = (chat(codec, *messages((role, text))) for text in (marked, "ab"))
    for token in codec.tokenizer.convert_tokens_to_ids(list(SPECIAL)):
        assert ids.count(token) == plain.count(token)
    assert r"a\u003c|im_start|>" in text_of(codec, ids).replace("\\\\", "\\")
    said = messages(("user", "How high?"), ("assistant", "<|head|>"))
    assert len(chat(codec, *said)) == len(chat(codec, *said[:1], *messages(("assistant", "")))) + 1  # what it wrote


def test_a_token_that_is_not_special_stays_one():
    assert PLAIN.encode_text("<tool_call>") == (PLAIN.tokenizer.convert_tokens_to_ids("<tool_call>"),)


@pytest.mark.parametrize("text", ["<output>5", "5", " 5", "\n5\n", ""])
def test_no_space_is_put_before_text_inside_a_stream(text: str):
    before = PIECES.encode(Request(role="policy", prompt="It is"))
    assert PIECES.decode([*before, *PIECES.encode_text(text)]) == "It is" + text


def test_an_end_token_at_the_end_is_no_text():
    end, other = PLAIN.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    said = PLAIN.encode_text("5 , 6 .")
    assert PLAIN.decode([*said, end]) == PLAIN.decode(said) == "5 , 6 ."
    assert PLAIN.decode([*said, end, *said]) == "5 , 6 .<|im_end|>5 , 6 ."
    assert TokenizerCodec(PLAIN.tokenizer, end_ids=(end, other)).decode([*said, other]) == "5 , 6 ."
    assert PLAIN.decode([]) == ""


# -- between two replies ---------------------------------------------------------------------------------------------

NEXT = {
    "a user": messages(("user", "And now ?")),
    "a tool": messages(("tool", '{"height": 324}')),
    "two tools": messages(("tool", "324"), ("tool", "325")),
    "a tool and a user": messages(("tool", "324"), ("user", "midstreamreply midstreamasked")),
}


@pytest.mark.parametrize("said", NEXT.values(), ids=NEXT)
@pytest.mark.parametrize("family", ["chatml", "headers"])
def test_a_stream_of_replies_is_the_whole_chat(family: str, said: tuple[Message, ...]):
    codec = CHATS[family]
    reply, end = codec.encode_text("It is 324 metres high."), codec.end_ids[0]
    whole = chat(codec, *ASKED, Message(role="assistant", content="It is 324 metres high."), *said)
    begun = (*chat(codec, *ASKED), *reply)
    assert (*begun, *codec.encode_reply(said, ended=False)) == whole
    assert (*begun, end, *codec.encode_reply(said, ended=True)) == whole


def test_who_takes_turns_does_so_in_a_stream():
    codec = CHATS["strict"]
    said = codec.encode_reply(NEXT["a user"], ended=True)
    assert text_of(codec, said) == "[INST] And now ? [/INST]"
    assert codec.encode_reply(NEXT["a user"], ended=False) == (*codec.end_ids, *said)


def test_thoughts_that_a_template_would_leave_out_stay_in_the_stream():
    codec = CHATS["chatml"]
    thought = codec.encode_text("<think>hm</think>324.")
    stream = (*chat(codec, *ASKED), *thought, *codec.encode_reply(NEXT["a user"], ended=False))
    assert "<think>hm</think>324.<|im_end|>\n<|im_start|>user\nAnd now ?" in text_of(codec, stream)
    whole = chat(codec, *ASKED, Message(role="assistant", content="<think>hm</think>324."), *NEXT["a user"])
    assert "<think>hm" not in text_of(codec, whole)


def test_thoughts_that_a_template_opens_are_opened_after_every_reply():
    codec = TokenizerCodec(byte_pairs(CHATML), "policy", {"thoughts": True})
    assert text_of(codec, chat(codec, *ASKED)).endswith("<|im_start|>assistant\n<think>\n")
    assert text_of(codec, codec.encode_reply(NEXT["a tool"], ended=True)) == (
        '\n<|im_start|>user\n<tool_response>\n{"height": 324}\n</tool_response><|im_end|>\n'
        "<|im_start|>assistant\n<think>\n"
    )


def test_any_end_token_stands_for_the_templates_own():
    tokenizer = byte_pairs(CHATML)
    ends = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    codec = TokenizerCodec(tokenizer, "policy", end_ids=ends)
    after = codec.encode_reply(NEXT["a user"], ended=True)
    assert not set(after[:1]) & set(ends)
    assert codec.encode_reply(NEXT["a user"], ended=False) == (ends[1], *after)


@pytest.mark.parametrize(
    ("family", "reasons"),
    [("strict", ("user+assistant+tool", "must alternate")), ("forgetful", ("messages of the role",))],
)
def test_a_template_without_tools_is_named(family: str, reasons: tuple[str, ...]):
    codec = CHATS[family]
    for _ in range(2):  # what is known of a role is no accident of the first time
        with raises("chat-template", "policy", *reasons):
            codec.encode_reply(NEXT["a tool and a user"], ended=True)
    assert codec.encode_reply(NEXT["a user"], ended=True)


def test_a_tokenizer_without_a_template_is_refused():
    with raises("chat-template", "policy", "chat messages"):
        PLAIN.encode_reply(NEXT["a user"], ended=True)
    with raises("chat-template"):
        chat(PLAIN, *ASKED)


# -- tools -----------------------------------------------------------------------------------------------------------


def test_tools_are_reported_as_the_template_does():
    codec = CHATS["chatml"]
    offered = text_of(codec, chat(codec, *ASKED, tools=(ADD,)))
    assert offered.startswith('<|im_start|>system\nBe helpful.\n{"type": "function", "function": {"name": "add"')
    assert "add" not in text_of(codec, chat(codec, *ASKED))


def test_a_template_that_leaves_tools_out_is_named():
    with raises("chat-template", "policy", "1 tools"):
        chat(CHATS["headers"], *ASKED, tools=(ADD,))


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ({"a": 1}, '{"a": 1}'),
        ("", "{}"),
        ("[1]", '"[1]"'),
        ('{"a": ', '"{\\"a\\": "'),
    ],
)
def test_a_template_gets_the_arguments_of_a_call_as_an_object_if_they_are_one(arguments, shown):
    template = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
    codec = TokenizerCodec(byte_pairs(template + "{% endfor %}"), "policy")
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    said = Message(role="assistant", content="", fields={"tool_calls": [call]})
    assert text_of(codec, chat(codec, *ASKED, said)) == shown
