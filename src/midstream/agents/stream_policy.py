"""The stream of one run so far, and the policy that writes its next stretch.

With token ids a stream is one sequence: what was sampled and what was put in follow each other as they are, and the
next request is all of it. Where an engine gives none, the same text goes out as a chat, or as one plain text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from midstream.core.component import ComponentConfig, Context
from midstream.core.errors import RecipeError
from midstream.core.prompt_text import neutral
from midstream.core.protocols import Codec, ModuleContext, Request, Tool
from midstream.core.stream import POLICY, Block, Piece, Template, escape_marks, latest, put_in
from midstream.core.stream_template import ANY_TOOL
from midstream.core.tool_calls import CHARACTERS_PER_TOKEN
from midstream.core.trajectory import Call, Message, Sampling


class PolicyConfig(ComponentConfig):
    """How the policy samples; `sampling.max_tokens` bounds one reply. Temperature 1 is the paper's (mathematics)."""

    asks = "always"

    sampling: Sampling = Sampling(temperature=1.0, max_tokens=2048)

    def build(self, context: Context) -> ModelPolicy:
        """Build it."""
        return ModelPolicy(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """A stream so far, and what its next request says.

    `messages` are the prompt; where output comes as messages, the whole chat so far. Of a template without a chat its
    one message is the plain text. `pieces` are all that came after the prompt. `ids` is everything as token ids, None
    without a codec; `prompt_tokens` of them are the prompt's. `tools` go by the names that the policy calls them by.
    `max_tokens` bounds what comes after the prompt, sampled or put in. `ended`: the policy itself ended the last reply,
    so that its end token is there; a stop string of the recipe's own leaves that out.
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
        """All that came after the prompt."""
        return self.template.opening + "".join(piece.text for piece in self.pieces)

    @property
    def remaining(self) -> int:
        """Tokens that are left; without token ids four characters count as one."""
        if self.ids is not None:
            return self.max_tokens - (len(self.ids) - self.prompt_tokens)
        return self.max_tokens - -(-len(self.text) // CHARACTERS_PER_TOKEN)

    @property
    def latest(self) -> list[Block]:
        """The parts of what was sampled since the environment last put something in."""
        return latest(self.pieces, self.template)

    @property
    def stops(self) -> tuple[str, ...]:
        """What sampling ends at: the marks that close a call or the answer, where output is put in behind them."""
        template = self.template
        if template.appends == "message":
            return ()
        close = template.call.close
        calls = [close.replace(ANY_TOOL, name) for name in self.tools] if ANY_TOOL in close else [close]
        return (*calls, *([template.answer.close] if template.answer else []))

    def begun(self, codec: Codec | None) -> Stream:
        """The stream at its beginning, as token ids where there is a codec."""
        if codec is None:
            return self
        opening = codec.encode_text(self.template.opening) if self.template.chat else ()
        ids = (*codec.encode(self._asked()), *opening)
        return replace(self, codec=codec, ids=ids, prompt_tokens=len(ids))

    def sampled(self, call: Call, turn: int) -> Stream:
        """The stream with a reply at its end: with the very ids that were sampled, or, without them, as text."""
        piece = Piece(text=call.completion, sampled=True, turn=turn)
        exact = self.ids is not None and call.completion_ids
        ids = (*call.prompt_ids, *call.completion_ids) if exact else None
        ended = not any(stop in call.completion for stop in call.sampling.stop)
        stream = replace(self, pieces=(*self.pieces, piece), ids=ids, ended=ended)
        if self.template.appends == "inline":
            return stream
        return replace(stream, messages=(*self.messages, Message(role="assistant", content=call.completion)))

    def answered(self, outputs: Sequence[str], turn: int) -> tuple[Stream, str]:
        """The stream with the output of tools at its end, and the text that this is."""
        texts = [put_in(output, self.template) for output in outputs]
        if self.template.appends == "inline":
            text = "".join(texts)
            codec, ids = self.codec, self.ids
            if codec is not None and ids is not None:
                ids = (*ids, *codec.encode_text(text))
            return replace(self, pieces=(*self.pieces, Piece(text=text, sampled=False, turn=turn)), ids=ids), text
        text = "\n".join(texts)
        if self.template.native:
            messages = [
                Message(role="tool", content=escape_marks(neutral(output), self.template)) for output in outputs
            ]
        else:
            messages = [Message(role="user", content=text)]
        return self.told(messages, text, turn), text

    def told(self, messages: Sequence[Message], text: str, turn: int) -> Stream:
        """The stream with chat messages at its end, which `text` says after all."""
        ids = self.ids
        if self.codec is not None and ids is not None:
            ids = (*ids, *self.codec.encode_reply(messages, ended=self.ended))
        pieces = (*self.pieces, Piece(text=text, sampled=False, turn=turn))
        return replace(self, pieces=pieces, messages=(*self.messages, *messages), ids=ids)

    def request(self) -> Request:
        """What the policy is asked next: everything so far."""
        if self.ids is not None:
            return replace(self._asked(), prompt_ids=self.ids)
        if self.template.opening and self.template.chat:
            raise RecipeError(
                f"the template {self.template.name!r} begins the reply with {self.template.opening!r}",
                cause="the policy's engine gives no token ids, and a chat's reply cannot be begun for it",
                fix="name an engine with token ids, or a template without an opening",
            )
        return self._asked()

    def _asked(self) -> Request:
        """The stream in words."""
        if not self.template.chat:
            return Request(role=POLICY, prompt=self.messages[0].content + self.text)
        messages = self.messages
        if self.template.appends == "inline":
            messages += _as_chat(self.pieces) if self.ids is None else _one_reply(self.text)
        offered = [_offer(name, tool) for name, tool in self.tools.items()] if self.template.native else []
        return Request(role=POLICY, messages=messages, tools=tuple(offered))


def _one_reply(text: str) -> tuple[Message, ...]:
    """A stream as the reply that is being written."""
    return (Message(role="assistant", content=text),) if text else ()


def _as_chat(pieces: Sequence[Piece]) -> tuple[Message, ...]:
    """A stream as a chat: what the policy wrote, and what was put in as if a user said it."""
    messages: list[Message] = []
    for piece in pieces:
        role = "assistant" if piece.sampled else "user"
        joined = messages.pop().content if messages and messages[-1].role == role else ""
        messages.append(Message(role=role, content=joined + piece.text))
    return tuple(messages)


def _offer(name: str, tool: Tool) -> dict[str, object]:
    """A tool in the form in which chat models are offered functions."""
    function = {"name": name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": _harmless(function)}


def _harmless(value: Any) -> Any:
    """JSON whose texts hold no token of a chat template, which writes them as they are."""
    if isinstance(value, Mapping):
        return {key: _harmless(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_harmless(inner) for inner in value]
    return neutral(value) if isinstance(value, str) else value


class Policy(Protocol):
    """policy(stream) -> the next stretch of the stream."""

    async def reply(self, stream: Stream, context: ModuleContext) -> Call:
        """Write on: the call's `completion` is what was sampled, the mark that ended it included."""
        ...


class ModelPolicy:
    """A model writes the stream."""

    shows_lessons = True  # a template without a place for them is refused when there are some

    def __init__(self, config: PolicyConfig) -> None:
        self.config = config

    async def reply(self, stream: Stream, context: ModuleContext) -> Call:
        """Sample until a mark ends the reply, the model does, or a limit."""
        if context.engine is None:
            raise RecipeError("the policy has no engine", fix="name one for the policy in the recipe")
        sampling = self.config.sampling
        limits = {
            "max_tokens": min(sampling.max_tokens, stream.remaining),
            "stop": (*stream.stops, *sampling.stop),
        }
        request = replace(
            stream.request(),
            sampling=sampling.model_copy(update=limits),
            keep_stop=True,
            seed=context.seed,
            order=context.order,
            deadline_s=context.deadline_s,
            emit=context.emit,
        )
        return await context.engine.sample(request)


def as_stopped(call: Call, stream: Stream) -> Call:
    """A reply without token ids as it would be from an engine that stops at the first mark and keeps it.

    Servers leave the mark that stopped them out, so a call or an answer that is open at the end of a reply is closed;
    what one that knows no stops wrote behind the first is cut off. Sampled ids are never touched.
    """
    if call.completion_ids or not stream.stops:
        return call
    text = call.completion
    ends = [place + len(stop) for stop in stream.stops if (place := text.find(stop)) >= 0]
    if ends:
        return call.model_copy(update={"completion": text[: min(ends)], "finish_reason": "stop"})
    last = stream.sampled(call, 0).latest[-1:]
    if call.finish_reason != "stop" or not last or last[0].closed or last[0].kind not in ("call", "answer"):
        return call
    close = stream.template.tags[last[0].kind].close.replace(ANY_TOOL, last[0].tool)
    return call.model_copy(update={"completion": text + close}) if close in stream.stops else call
