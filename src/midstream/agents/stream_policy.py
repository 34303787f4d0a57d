"""The stream of one run so far, and the policy that writes its next part.

With token ids a stream is one sequence: sampled and appended ids follow each other unchanged, and the next request is
all of it. With an engine without token ids, the same text is sent as a chat, or as one plain text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from midstream.components.component import ComponentConfig
from midstream.core.agent import ModuleContext
from midstream.core.data import JsonObject, mapped
from midstream.core.engine import Codec, Request
from midstream.core.stream import POLICY, Block, Piece, escape_marks, latest, put_in
from midstream.core.stream_template import ANY_TOOL, Template
from midstream.core.text import neutral
from midstream.core.tool import Tool
from midstream.core.tool_calls import CHARACTERS_PER_TOKEN
from midstream.core.trajectory import Call, Message, Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """A stream so far; immutable, each step gives a new one.

    `messages` are the prompt; if output is appended as messages, the whole chat so far; for a template without a chat,
    one message with the plain text. `pieces` are the text after the prompt. `ids` is everything as token ids, None
    without a codec; the first `prompt_tokens` of them are the prompt's. `tools` have the policy's names for them.
    `max_tokens` bounds what comes after the prompt, sampled or appended. `ended`: the policy itself ended the last
    reply, so its end token was sampled; a stop string of the recipe leaves that out.
    """

    template: Template
    messages: tuple[Message, ...]
    tools: Mapping[str, Tool]
    max_tokens: int
    codec: Codec | None = None
    pieces: tuple[Piece, ...] = ()
    ids: tuple[int, ...] | None = None
    prompt_tokens: int = 0
    ended: bool = True

    @property
    def text(self) -> str:
        """The text after the prompt."""
        return self.template.opening + "".join(piece.text for piece in self.pieces)

    @property
    def remaining(self) -> int:
        """Remaining tokens; without token ids, four characters count as one."""
        if self.ids is not None:
            return self.max_tokens - (len(self.ids) - self.prompt_tokens)
        return self.max_tokens - -(-len(self.text) // CHARACTERS_PER_TOKEN)

    @property
    def latest(self) -> list[Block]:
        """The blocks sampled since the environment last appended something."""
        return latest(self.pieces, self.template)

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings: the marks that close a call or the answer, if output is appended inline after them."""
        template = self.template
        if template.appends == "message":
            return ()
        close = template.call.close
        calls = [close.replace(ANY_TOOL, name) for name in self.tools] if ANY_TOOL in close else [close]
        return (*calls, *([template.answer.close] if template.answer else []))

    def encoded(self, codec: Codec | None) -> Stream:
        """The stream at its beginning, as token ids if there is a codec."""
        if codec is None:
            return self
        opening = codec.encode_text(self.template.opening) if self.template.chat else ()
        ids = (*codec.encode(self._text_request()), *opening)
        return replace(self, codec=codec, ids=ids, prompt_tokens=len(ids))

    def with_reply(self, call: Call) -> Stream:
        """The stream with a reply at its end: the sampled ids unchanged, or, without ids, the text."""
        piece = Piece(text=call.completion, sampled=True)
        # Once a part has no ids, the stream has none: a text that is tokenized again may have others.
        exact = self.ids is not None and call.completion_ids
        ids = (*call.prompt_ids, *call.completion_ids) if exact else None
        ended = not any(stop in call.completion for stop in call.sampling.stop)
        stream = replace(self, pieces=(*self.pieces, piece), ids=ids, ended=ended)
        if self.template.appends == "inline":
            return stream
        return replace(stream, messages=(*self.messages, Message(role="assistant", content=call.completion)))

    def with_outputs(self, outputs: Sequence[str]) -> tuple[Stream, str]:
        """The stream with the output of tools at its end, and the appended text."""
        texts = [put_in(output, self.template) for output in outputs]
        if self.template.appends == "inline":
            text = "".join(texts)
            return self._appended(text, lambda codec: codec.encode_text(text)), text
        text = "\n".join(texts)
        messages = [Message(role="user", content=text)]
        if self.template.native:
            shown = [escape_marks(neutral(output), self.template) for output in outputs]
            messages = [Message(role="tool", content=output) for output in shown]
        return self.with_messages(messages, text), text

    def with_messages(self, messages: Sequence[Message], text: str) -> Stream:
        """The stream with chat messages at its end; `text` is their text."""
        stream = self._appended(text, lambda codec: codec.encode_reply(messages, ended=self.ended))
        return replace(stream, messages=(*self.messages, *messages))

    def _appended(self, text: str, encode: Callable[[Codec], Sequence[int]]) -> Stream:
        ids = self.ids
        if self.codec is not None and ids is not None:
            ids = (*ids, *encode(self.codec))
        return replace(self, pieces=(*self.pieces, Piece(text=text, sampled=False)), ids=ids)

    def request(self) -> Request:
        """The next request: everything so far."""
        if self.ids is not None:
            return replace(self._text_request(), prompt_ids=self.ids)
        if self.template.opening and self.template.chat:
            fix = "name an engine with token ids, or a template without an opening"
            raise self.template.mismatch(f"begins the reply with {self.template.opening!r}", fix)
        return self._text_request()

    def _text_request(self) -> Request:
        if not self.template.chat:
            return Request(role=POLICY, prompt=self.messages[0].content + self.text)
        messages = list(self.messages)
        if self.template.appends == "inline" and self.ids is None:
            # As a chat: what the policy wrote, and what was appended as if a user said it; neighbors are joined.
            chat: list[Message] = []
            for piece in self.pieces:
                role = "assistant" if piece.sampled else "user"
                joined = chat.pop().content if chat and chat[-1].role == role else ""
                chat.append(Message(role=role, content=joined + piece.text))
            messages += chat
        elif self.template.appends == "inline" and self.text:
            messages.append(Message(role="assistant", content=self.text))
        return Request(role=POLICY, messages=tuple(messages), tools=offered(self.tools) if self.template.native else ())


def offered(tools: Mapping[str, Tool]) -> tuple[JsonObject, ...]:
    """The tools in the form in which chat models are offered functions, without tokens of a chat template."""
    functions = [
        {"name": name, "description": tool.description, "parameters": dict(tool.parameters)}
        for name, tool in tools.items()
    ]
    # The chat template writes texts unescaped.
    functions = mapped(functions, lambda leaf: neutral(leaf) if isinstance(leaf, str) else leaf)
    return tuple({"type": "function", "function": function} for function in functions)


class StreamPolicy(Protocol):
    """policy(stream) -> the next part of the stream."""

    async def reply(self, stream: Stream, context: ModuleContext) -> Call:
        """Continue the stream: the call's `completion` is the sampled text, with the mark that ended it."""
        ...


class ModelPolicy:
    """A model writes the stream."""

    # The agent refuses lessons if the template has no place for them.
    shows_lessons = True
    instructions = True  # those of the template

    def __init__(self, config: PolicyConfig) -> None:
        self.config = config

    async def reply(self, stream: Stream, context: ModuleContext) -> Call:
        """Sample until a mark ends the reply, the model does, or a limit."""
        sampling = self.config.sampling
        limits = {"max_tokens": min(sampling.max_tokens, stream.remaining), "stop": (*stream.stops, *sampling.stop)}
        sampling = sampling.model_copy(update=limits)
        return await context.sample(replace(stream.request(), sampling=sampling, keep_stop=True, seed=context.seed))


class PolicyConfig(ComponentConfig):
    """A model that writes the stream.

    Temperature 1 is the paper's (mathematics).

    Attributes:
        sampling: see `sampling`; `max_tokens` is the limit of one reply
    """

    asks = "always"
    component = ModelPolicy

    sampling: Sampling = Sampling(temperature=1.0, max_tokens=2048)


def stopped_at_mark(call: Call, stream: Stream) -> Call:
    """A reply without token ids, changed to what an engine that stops at the first mark and keeps it would return.

    Servers leave out the mark that stopped them, so a call or an answer that is open at the end of a reply is closed;
    text after the first mark, from a server that ignores stop strings, is cut off. Sampled ids are never changed.
    """
    if call.completion_ids or not stream.stops:
        return call
    text = call.completion
    ends = [place + len(stop) for stop in stream.stops if (place := text.find(stop)) >= 0]
    if ends:
        return call.model_copy(update={"completion": text[: min(ends)], "finish_reason": "stop"})
    last = stream.with_reply(call).latest[-1:]
    if call.finish_reason != "stop" or not last or last[0].closed or last[0].kind not in ("call", "answer"):
        return call
    close = stream.template.tags[last[0].kind].close.replace(ANY_TOOL, last[0].tool)
    return call.model_copy(update={"completion": text + close}) if close in stream.stops else call
