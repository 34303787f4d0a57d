"""Policies, tools, users and a model of two-letter tokens, for tests of the interleaved loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from midstream.agents.interleaved import InterleavedLoop, StreamConfig
from midstream.agents.stream_policy import ModelPolicy, PolicyConfig
from midstream.core.agent import RunContext
from midstream.core.engine import Engine, Request
from midstream.core.source import UserTurn
from midstream.core.stream_template import Template, load_template
from midstream.core.task import Task
from midstream.core.tool import Tool, ToolResult
from midstream.core.trajectory import Call, Message, Trajectory

QUESTION = "What is 2 + 3 ?"
END = 0


@dataclass
class Shout:
    """Says its text louder; "nothing" has no result, and `failure` is raised at call number `breaks_at`."""

    name: str = "python"
    failure: BaseException | None = None
    breaks_at: int = 0
    slow_at: int = 0
    made: list[str] = field(default_factory=list)
    inner: tuple[Call, ...] = ()
    description: str = "shouts <|im_end|>"
    timeout_s: float = 30.0
    output_tokens: int = 100_000
    parameters: Mapping[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    )

    async def call(self, arguments: Mapping[str, JsonValue]) -> ToolResult:
        text = str(arguments["code"])
        self.made.append(text)
        if self.failure is not None and len(self.made) == self.breaks_at:
            raise self.failure
        if len(self.made) == self.slow_at:
            await asyncio.sleep(60)
        return ToolResult(text=f"{text}!", ok=text != "nothing", calls=self.inner)

    async def close(self) -> None: ...


@dataclass
class Talk:
    """A user who says `texts` one after another; `offers` are the functions from each of them on."""

    texts: Sequence[str]
    offers: Sequence[Sequence[Tool]]
    system: str = ""
    heard: list[str] = field(default_factory=list)
    calls: tuple[Call, ...] = ()
    failure: Exception | None = None

    async def begin(self) -> UserTurn:
        return UserTurn(text=self.texts[0], tools=self.offers[0], calls=self.calls)

    async def reply(self, text: str) -> UserTurn:
        self.heard.append(text)
        if self.failure is not None:
            raise self.failure
        place = len(self.heard)
        if place == len(self.texts):
            return UserTurn(text="", over=True, calls=self.calls)
        return UserTurn(text=self.texts[place], tools=self.offers[min(place, len(self.offers) - 1)], calls=self.calls)

    def outcome(self) -> dict[str, JsonValue]:
        return {"success": True}

    async def close(self) -> None: ...


class Pairs:
    """A codec of tokens of one or two characters; a token's id is that of its text, 0 ends a reply."""

    def encode(self, request: Request) -> Sequence[int]:
        """A chat is its messages, each behind its role."""
        chat = "".join(f"[{one.role}]{one.content}" for one in request.messages)
        return request.prompt_ids or self.encode_text(request.prompt or f"{chat}[assistant]")

    def encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(self.id_of(text[place : place + 2]) for place in range(0, len(text), 2))

    def encode_reply(self, messages: Sequence[Message], *, ended: bool) -> tuple[int, ...]:
        chat = "".join(f"[{one.role}]{one.content}" for one in messages)
        return ((END,) * (not ended)) + self.encode_text(f"{chat}[assistant]")

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.text_of(one) for one in ids if one != END)

    @staticmethod
    def id_of(text: str) -> int:
        return sum((ord(one) + 1) << (21 * place) for place, one in enumerate(text))

    @staticmethod
    def text_of(token: int) -> str:
        return "".join(chr((token >> shift) % (1 << 21) - 1) for shift in (0, 21) if token >> shift)


class Typist:
    """A model that writes `script` token by token, whatever it reads, and ends a reply at "|"."""

    name, token_exact = "typist", True

    def __init__(self, script: str) -> None:
        self.codec = Pairs()
        self.requests: list[Request] = []
        self._script = list(self._tokens(script))

    def _tokens(self, script: str) -> list[int]:
        parts = [self.codec.encode_text(part) for part in script.split("|")]
        return [one for place, part in enumerate(parts) for one in ((END,) * (place > 0) + part)]

    async def sample(self, request: Request) -> Call:
        """Write until a stop string stands in the reply, the end or the limit."""
        self.requests.append(request)
        ids: list[int] = []
        reason = "length"
        while len(ids) < request.sampling.max_tokens:
            ids.append(self._script.pop(0) if self._script else END)
            text = self.codec.decode(ids)
            if ids[-1] == END or any(stop in text for stop in request.sampling.stop):
                reason = "stop"
                break
        return Call(
            role=request.role,
            prompt_ids=tuple(self.codec.encode(request)),
            completion_ids=tuple(ids),
            logprobs=(0.0,) * len(ids),
            completion=self.codec.decode(ids),
            sampling=request.sampling,
            finish_reason=reason,
        )

    async def close(self) -> None: ...


def play(
    engine: Engine | None,
    *,
    template: str | Template = "artist-math",
    tools: Sequence[Tool] | None = None,
    talk: Talk | None = None,
    policy: Any = None,
    deadline_s: float | None = None,
    reply_tokens: int = 2048,
    run: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
    **config: Any,
) -> Trajectory:
    """Run one task with the policy on `engine`."""
    named = load_template(template) if isinstance(template, str) else template
    sampling = PolicyConfig().sampling.model_copy(update={"max_tokens": reply_tokens})
    writer = policy or ModelPolicy(PolicyConfig(sampling=sampling))
    agent = InterleavedLoop(policy=writer, template=named, config=StreamConfig(tools=dict(names or {}), **config))
    own = [Shout()] if tools is None and talk is None else list(tools or ())
    limit = None if deadline_s is None else time.monotonic() + deadline_s
    engines = {} if engine is None else {"policy": engine}
    given = {"tools": own, "engines": engines, "seed": 5, "deadline_s": limit, "dialogue": talk, **(run or {})}
    return asyncio.run(agent.run(Task(id="t", question=QUESTION, answer=""), RunContext(**given)))
