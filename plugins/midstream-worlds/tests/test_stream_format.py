"""The relaxed and the strict format of a stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.stream import Piece, put_in
from midstream.core.stream_template import Marks, Template, load_template
from midstream_worlds.stream_format import is_strict, tags_present

MATH, CHAT = load_template("artist-math"), load_template("artist-function-calling")
PER_TOOL = Template(
    name="per-tool",
    think=Marks(open="<think>", close="</think>"),
    call=Marks(open="<{tool}>", close="</{tool}>"),
    output=Marks(open="<output>", close="</output>"),
    answer=Marks(open="<answer>", close="</answer>"),
)
OPENED = MATH.model_copy(update={"opening": "<think>"})


def pieces(*texts: str, template: Template = MATH) -> list[Piece]:
    """Texts by turns: the policy's, then a tool's output, then the policy's ..."""
    return [
        Piece(text=put_in(text, template) if turn % 2 else text, sampled=not turn % 2)
        for turn, text in enumerate(texts)
    ]


GOOD = ("<think>a</think><python>1</python>", "1", "\n<think>b</think>\n<answer>1</answer>\n")


@pytest.mark.parametrize(
    ("texts", "strict", "missing"),
    [
        (GOOD, True, set()),
        (("<think>a</think><python>1</python>", "1", *GOOD), True, set()),
        (("<think>a</think> so <python>1</python>", "1", "<think>b</think> it is <answer>1</answer>"), True, set()),
        (("<think>a</think><answer>1</answer>",), False, {"call", "output"}),
        (("<answer>1</answer>",), False, {"think", "call", "output"}),
        (GOOD[:2], False, {"answer"}),
        (GOOD[:1], False, {"output", "answer"}),
        (("<python>1</python>", *GOOD[1:]), False, set()),  # no thought before the call
        ((GOOD[0], "1", "<answer>1</answer>"), False, set()),  # none before the answer
        ((GOOD[0], "1", "<answer>1</answer><think>b</think>"), False, set()),  # the thought after the answer
        ((GOOD[0], "1", GOOD[2] + "<answer>2</answer>"), False, set()),  # two answers
        ((GOOD[0], "1", GOOD[2] + " of course"), False, set()),  # text after the answer
        ((GOOD[0], "1", "</think>" + GOOD[2]), False, set()),  # a stray mark
        ((GOOD[0], "1", "<think>b<think>c</think><answer>1</answer>"), False, set()),  # nested
        ((GOOD[0], "1", "<think>b</think><answer>1"), False, {"answer"}),  # unclosed
        ((GOOD[0], "1", "<think>b</think><answer>1</ans"), False, {"answer"}),  # cut in a mark
        (
            ("<think>a</think><python>1</python><output>1</output><think>b</think><answer>1</answer>",),
            False,
            {"output"},
        ),
        ((), False, {"think", "call", "output", "answer"}),
    ],
)
def test_formats_of_mathematics(texts, strict, missing):
    stream = pieces(*texts)
    assert is_strict(stream, MATH) is strict
    assert {name for name, there in tags_present(stream, MATH).items() if not there} == missing


CALL = '<reasoning>a</reasoning>\n<tool>[{"name": "f"}]</tool>'


@pytest.mark.parametrize(
    ("texts", "strict"),
    [
        ((CALL, "1"), True),
        ((CALL, "1", "Done."), True),
        ((CALL + '<tool>[{"name": "g"}]</tool>', "1"), False),  # two calls, one result
        ((CALL, "1", '<tool>[{"name": "f"}]</tool>', "1"), False),
        (("Done.",), False),
        ((CALL,), False),
    ],
)
def test_formats_of_function_calling(texts, strict):
    assert is_strict(pieces(*texts, template=CHAT), CHAT) is strict
    assert "answer" not in tags_present(pieces(*texts, template=CHAT), CHAT)


def test_several_calls_of_a_message_share_a_thought_and_have_a_result_each():
    results = Piece(text=put_in("1", CHAT) + "\n" + put_in("2", CHAT), sampled=False)
    stream = [Piece(text=CALL + '\n<tool>[{"name": "g"}]</tool>', sampled=True), results]
    assert is_strict(stream, CHAT)


def test_marks_of_the_opening_count():
    assert tags_present(pieces("a</think>"), OPENED)["think"]


def test_marks_that_hold_a_tool_count_when_both_name_the_same():
    assert tags_present(pieces("<sum>1</sum>"), PER_TOOL)["call"]
    assert not tags_present(pieces("<sum>1</find>"), PER_TOOL)["call"]
    assert not tags_present(pieces("<think>1</think>"), PER_TOOL)["call"]


PARTS = st.sampled_from(["<think>", "</think>", "<python>", "</python>", "<output>", "<answer>", "</answer>", "<", "a"])


@given(st.sampled_from([MATH, CHAT, PER_TOOL, OPENED]), st.lists(st.lists(PARTS).map("".join), max_size=4))
def test_any_stream_has_a_format(template, texts):
    stream = pieces(*texts, template=template)
    assert not is_strict(stream, template) or all(tags_present(stream, template).values())
