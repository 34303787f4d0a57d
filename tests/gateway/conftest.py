"""A reply with everything that a reply can have."""

from __future__ import annotations

import pytest

from midstream.gateway.forms import ChatReply, FunctionCall


@pytest.fixture
def full() -> ChatReply:
    return ChatReply(
        id="7",
        model="m",
        created=1,
        text="I add 1 and 2.",
        thoughts="Two numbers.\nOne call.",
        tool_uses=(
            FunctionCall(id="a1b2c3d4e", name="add", arguments='{"a": 1}'),
            FunctionCall(id="f1b2c3d4e", name="now", arguments="{}"),
        ),
        finish="stop",
        prompt_tokens=5,
        completion_tokens=9,
    )
