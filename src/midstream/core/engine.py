"""Protocols of engines: a request, and what samples its answer from a model.

The protocols of this package are structural: a class that has the methods satisfies one, without a base class and
without registration. Packages of one layer do not import each other; they use these protocols instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from midstream.core.data import JsonObject, JsonSchema
from midstream.core.events import Emit, ignore_event
from midstream.core.trajectory import Call, Message, Sampling, Usage

# The place of the running trajectory in its rollout: a tool's request to an engine in this process has it as `order`.
ORDER: ContextVar[int] = ContextVar("order", default=0)
_LIMITS = ("max_tokens", "max_completion_tokens")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """What the rollouts of a training step sample from, where they run ahead of it: the weights of one version."""

    step: int
    version: int


# Of the rollouts under way; None where requests get the newest weights.
PIN: ContextVar[Pin | None] = ContextVar("pin", default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request to an engine."""

    role: str  # the module that asks, e.g. "planner"
    messages: tuple[Message, ...] = ()  # the chat to answer
    prompt: str = ""  # the raw text to continue, instead of `messages`
    # Exact token ids to continue. `messages` or `prompt` then hold the same prompt as text, for traces and for engines
    # without token ids.
    prompt_ids: tuple[int, ...] = ()
    tools: tuple[JsonSchema, ...] = ()  # offered to a chat model in its native form
    continues: bool = False  # the last message is the beginning of the reply (engines with a codec)
    sampling: Sampling = Sampling()
    keep_stop: bool = False  # keep the stop string that ended the completion in its text, with the rest of its token
    seed: int = 0  # makes the sample repeatable if the engine supports it
    order: int = 0  # index of the trajectory in its rollout; a `LockstepEngine` sorts its batches by it
    pin: Pin | None = field(default_factory=PIN.get)
    json_schema: JsonSchema | None = None  # of the structured output to ask for
    # What an agent of another program sets, as fields of a chat completion: a server gets these in place of `sampling`.
    # `sampling` has their values, and defaults for what they leave open. None for midstream's own requests.
    options: Mapping[str, Any] | None = None
    capped: bool = False  # `sampling.max_tokens` holds, whatever `options` say
    # Asks for a stream; gets each chunk as the server sends it, and what that adds to the first choice.
    relay: Callable[[JsonObject, Sequence[ReplyPiece]], object] | None = None
    deadline_s: float | None = None  # when to give up, as a time of `time.monotonic()`
    emit: Emit = ignore_event  # called with each piece of "text" by an engine that streams, with "retry" on a retry

    @property
    def max_tokens(self) -> int | None:
        """The most new tokens; None if an agent of another program sets no limit."""
        given = self.options is None or any(self.options.get(name) is not None for name in _LIMITS)
        return self.sampling.max_tokens if given or self.capped else None

    def answered(self, engine: str, completion: str, **fields: Any) -> Call:
        """The record of an engine's answer; `fields` are others of a `Call`."""
        of_request = {name: getattr(self, name) for name in ("role", "prompt", "messages", "sampling")}
        return Call(engine=engine, completion=completion, **of_request, **fields)


@runtime_checkable
class Engine(Protocol):
    """Samples tokens from a model, remote or in process.

    `token_exact` is true if its calls carry the sampled token ids and log-probabilities, which training needs.
    """

    name: str
    token_exact: bool

    async def sample(self, request: Request) -> Call:
        """Answer one request.

        Raises:
            EngineError: every attempt failed; `calls` holds the failed call.
            DeadlineError: `request.deadline_s` passed first (from engines that watch it).
        """
        ...

    async def close(self) -> None:
        """Release connections; nothing by default. The engine is not used afterwards."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplyPiece:
    """A piece of a streamed reply: of its "text", of its "thoughts", or of the arguments of the "call" at a place."""

    kind: Literal["text", "thoughts", "call"]
    text: str
    place: int = 0
    id: str = ""
    name: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardedRequest:
    """A request to another API of an engine's server, such as `POST embeddings`; `path` is below the server's address.

    `own_model`: the body is a JSON object, whose "model" is to be the engine's.
    """

    method: str
    path: str
    content_type: str
    body: bytes
    own_model: bool = False
    deadline_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardedReply:
    """A server's answer as it is, and what it used."""

    status: int
    content_type: str
    body: bytes
    usage: Usage


@runtime_checkable
class ServedEngine(Engine, Protocol):
    """An engine whose server gets the requests of an agent of another program as they are.

    It uses any of a request's `options`; its calls have the server's `reply` to them, unless it is `token_exact`.
    """

    async def forward(self, request: ForwardedRequest) -> ForwardedReply:
        """The server's answer to a request to another of its APIs. Raises as `sample`."""
        ...


class Codec(Protocol):
    """Converts text to token ids and back as an engine's model does; an engine offers it as its attribute `codec`.

    With it, a stream is continued token by token, and sampled text is never tokenized again.
    """

    def encode(self, request: Request) -> Sequence[int]:
        """Ids of a request's prompt: its `prompt_ids`, its text, or its messages and tools in the chat template."""
        ...

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Ids of text that the environment appends; the model's special tokens inside it are encoded as plain text."""
        ...

    def encode_reply(self, messages: Sequence[Message], *, ended: bool) -> tuple[int, ...]:
        """Ids between an assistant's message and its next one: `messages` with the chat template's text around them.

        `ended`: the stream already holds the assistant's end token, because it was sampled.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, without an end token at their end."""
        ...


@runtime_checkable
class LockstepEngine(Protocol):
    """An engine that samples once every live trajectory waits for it, in a fixed order rather than by arrival."""

    def join(self, order: int) -> None:
        """Register trajectory number `order` as live: sampling waits for its requests."""
        ...

    def leave(self, order: int) -> None:
        """Remove a trajectory that has ended; removing it again does nothing."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """The newest weights, for the engine that samples from them (`use_weights`), which may hold them already."""

    version: int
    codec: Codec  # of their model
    export: Callable[[Path], None]  # writes them into a directory
    directory: Path  # where an engine keeps what it hands to a server
