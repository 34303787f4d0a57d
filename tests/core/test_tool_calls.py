"""Calling a tool: its limit, its failures, its text."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from midstream.core.errors import RefusedError, ToolServerError
from midstream.core.tool import ToolResult
from midstream.core.tool_calls import call_tool
from midstream.core.trajectory import Call, Observation
from support.errors import coded

CALLS = (Call(role="tool"),)


@dataclass
class Sleeper:
    delay_s: float = 0.0
    failure: BaseException | None = None
    text: str = "done"
    name: str = "sleeper"
    description: str = ""
    timeout_s: float = 0.05
    output_tokens: int = 100_000
    parameters: Mapping[str, Any] = field(default_factory=dict)

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        await asyncio.sleep(self.delay_s)
        if self.failure:
            raise self.failure
        return ToolResult(text=self.text, ok=False, calls=CALLS)

    async def close(self) -> None: ...


def test_a_result_comes_as_it_is_and_can_be_stored():
    result = asyncio.run(call_tool(Sleeper(text="é\ud800\n"), {}))
    assert result == ToolResult(text="é?\n", ok=False, calls=CALLS)
    assert Observation(status="ok", text=result.text).model_dump_json()


def test_a_slow_tool_has_no_result():
    result = asyncio.run(call_tool(Sleeper(delay_s=9.0), {}))
    assert result == ToolResult(text="sleeper gave no result within 0.05 s", ok=False)


def test_a_time_limit_inside_a_tool_is_its_failure():
    with pytest.raises(ToolServerError, check=coded("tool-failed", "sleeper", "TimeoutError('inside')")):
        asyncio.run(call_tool(Sleeper(failure=TimeoutError("inside")), {}))


def test_any_other_exception_inside_a_tool_is_its_failure():
    failure = UnicodeError("label empty or too long")
    with pytest.raises(ToolServerError, check=coded("tool-broken", "sleeper raised UnicodeError: label")) as raised:
        asyncio.run(call_tool(Sleeper(failure=failure), {}))
    assert Path(__file__).name in raised.value.cause
    with pytest.raises(RefusedError, check=coded("key-refused", "wrong key")):
        asyncio.run(call_tool(Sleeper(failure=RefusedError("wrong key")), {}))


def test_a_cancellation_inside_a_tool_is_its_failure_unlike_one_from_outside():
    with pytest.raises(ToolServerError, check=coded("tool-failed", "sleeper", "cancelled")):
        asyncio.run(call_tool(Sleeper(failure=asyncio.CancelledError()), {}))

    async def stopped() -> None:
        caller = asyncio.create_task(call_tool(Sleeper(delay_s=9.0, timeout_s=9.0), {}))
        await asyncio.sleep(0)
        caller.cancel()
        await caller

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stopped())
