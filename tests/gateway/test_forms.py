"""What the three APIs share: every JSON value is read or refused with its place, and never breaks the reader."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.core.trajectory import Sampling
from midstream.gateway import anthropic_messages, chat_completions, responses
from midstream.gateway.forms import ChatRequest, FormError, sse

APIS = [chat_completions, responses, anthropic_messages]

TEXTS = st.text(max_size=8) | st.text(st.characters(codec=None, exclude_categories=()), max_size=3)
NUMBERS = st.integers() | st.floats() | st.just(10**400)
# Keys and words of the APIs, so that random values reach deeper than the first check.
WORDS = st.sampled_from(
    "model messages role content type text user assistant tool developer system tools function name parameters"
    " arguments tool_calls tool_call_id id input instructions function_call function_call_output call_id output"
    " reasoning summary summary_text message tool_use tool_result tool_use_id thinking max_tokens temperature top_p"
    " stop stop_sequences seed stream stream_options include_usage response_format json_schema schema tool_choice"
    " auto none input_schema image_url output_config format input_text max_output_tokens".split()
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | TEXTS, inner, max_size=5),
    max_leaves=30,
)


def check(api: ModuleType, body: Any) -> None:
    """Read a body; what is accepted must be usable, and a refusal must be possible to send."""
    try:
        asked: ChatRequest = api.read(body)
    except FormError as error:
        refusal = error
    else:
        Sampling(**asked.sampling)
        assert asked.messages
        sse({"messages": [message.wire() for message in asked.messages], "tools": list(asked.tools)})
        return
    assert refusal.status == 400
    assert refusal.code
    assert refusal.message
    json.dumps(api.error(refusal), ensure_ascii=False).encode()


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.__name__.rpartition(".")[2])
@given(body=JSON)
def test_no_json_value_breaks_a_reader(api: ModuleType, body: Any) -> None:
    check(api, body)


@pytest.mark.matrix(1)
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.__name__.rpartition(".")[2])
@given(key=WORDS, value=JSON, items=st.lists(st.dictionaries(WORDS, JSON, max_size=5), max_size=3))
def test_no_json_value_in_a_request_breaks_a_reader(api: ModuleType, key: str, value: Any, items: list[Any]) -> None:
    messages = [{"role": "user", "content": "Hi"}, *items]
    check(api, {"model": "m", "messages": messages, "input": messages, "max_tokens": 5, key: value})


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


UNFIT = [nested(50_000), 10**5000, float("nan"), {"\ud800": 1}]


@pytest.mark.parametrize("value", UNFIT, ids=["deep", "big", "nan", "half"])
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.__name__.rpartition(".")[2])
def test_values_that_cannot_be_recorded(api: ModuleType, value: Any) -> None:
    for body in (value, {"model": value}, {"messages": [value]}, {"input": [{"content": value}]}):
        with pytest.raises(FormError):
            api.read(body)
        check(api, body)


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_an_event_is_one_line_of_data(text: str) -> None:
    block = sse({"text": text}, "named")
    assert len(block.splitlines()) == 3
    assert block.endswith("\n\n")
