"""What the three APIs of the gateway share: a request and a reply without an API, and checked reading of JSON.

    body in the form of an API --read--> ChatRequest --engine, parser--> ChatReply --write, events--> the API's form

Messages and tools of all three become those of OpenAI's chat completions, which chat templates render.
"""

from __future__ import annotations

import json
import re
from base64 import b32encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, TypeVar

from pydantic import JsonValue

from midstream.core.data import JsonObject, unfit
from midstream.core.engine import ReplyPiece
from midstream.core.tool_calls import parsed
from midstream.core.trajectory import Message

# Of a function; wider than each API's own rule.
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_LARGEST = 2**31 - 1
# A comment, which keeps a stream alive.
HEARTBEAT = ": waiting\n\n"
_JSON_NAMES = {str: "text", bool: "true or false", int: "an integer", float: "a number", list: "a list"}
_Value = TypeVar("_Value")

# Fields of all three APIs that are read, or that change no reply.
_READ = frozenset(
    "model stream stream_options tools tool_choice temperature top_p metadata user store service_tier"
    " safety_identifier prompt_cache_key prompt_cache_retention top_logprobs".split()
)
_TAKEN = frozenset(
    "messages prompt input n logprobs response_format max_tokens max_completion_tokens stop seed".split()
)
# Values of other fields that change no reply, where an engine cannot use them.
_HARMLESS: dict[str, tuple[object, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "top_k": (0, -1),
    "parallel_tool_calls": (True,),
    "reasoning_effort": ("none",),
    "thinking": ({"type": "disabled"},),
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "function_call": ("auto", "none"),
    "modalities": (["text"],),
}


class FormError(Exception):
    """A request that the gateway refuses.

    Attributes:
        code: one of OpenAI's: "invalid_type", "invalid_value", "missing_required_parameter", "unsupported_parameter" or
            "unsupported_value"
        message: what is wrong and what to send instead
        param: the place in the body, such as "messages[0].content"; None for the body itself
        status: of HTTP
    """

    def __init__(self, code: str, message: str, param: str | None, status: int = 400) -> None:
        super().__init__(f"{param}: {message}" if param else message)
        self.code, self.message, self.param, self.status = code, message, param, status


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRequest:
    """One request of an agent, in whichever API it came.

    `tools` have chat completions' form, with exactly name, parameters and, if given, description. `sampling` has what
    the caller gave of temperature, top_p, max_tokens and stop (a tuple), `options` other fields that change a reply,
    in chat completions' form. `json_schema` is of the reply's text. `body` is that of a chat completion, but for model,
    messages and stream: a server gets it as it is.
    """

    model: str
    messages: tuple[Message, ...]
    tools: tuple[JsonObject, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    seed: int | None = None
    json_schema: JsonObject | None = None
    body: JsonObject | None = None
    stream: bool = False
    include_usage: bool = False  # in a stream of chat completions; the others always have it

    @property
    def given(self) -> dict[str, Any]:
        """All that the caller sets of a sample."""
        return {**self.sampling, **self.options} | ({} if self.seed is None else {"seed": self.seed})


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionCall:
    """A tool call in a reply; `arguments` is the JSON text of an object, as the model wrote it, or cut off."""

    id: str
    name: str
    arguments: str

    def wire(self) -> JsonObject:
        """The call in chat completions' form."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}

    @property
    def values(self) -> JsonObject | None:
        """The arguments; None if they are no object."""
        found = parsed(self.arguments)
        return found if isinstance(found, dict) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatReply:
    """One reply, before it is written in the form of an API, which gives `id` its prefix.

    `body` is a server's chat completion, which an agent that asked for one gets as it is.
    """

    id: str
    model: str
    created: int  # Unix seconds
    text: str
    thoughts: str = ""
    tool_uses: tuple[FunctionCall, ...] = ()
    finish: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    body: JsonObject = field(default_factory=dict)

    @property
    def speaks(self) -> bool:
        """Whether the reply has a text, which may be empty if it has nothing else to act on."""
        return bool(self.text) or not self.tool_uses


@dataclass(frozen=True, slots=True)
class JsonFields:
    """An object in a body, and its place; null is a missing value. All methods raise `FormError`."""

    table: JsonObject
    place: str = ""

    def at(self, key: str) -> str:
        """The place of a value."""
        return f"{self.place}.{key}" if self.place else key

    def maybe(self, key: str, kind: type[_Value]) -> _Value | None:
        """A value of the exact type `kind`, or None; an integer is also a float."""
        value: Any = self.table.get(key)
        found = type(value)
        if value is not None and found is not kind and (found, kind) != (int, float):
            needed = _JSON_NAMES.get(kind, "an object")
            raise FormError("invalid_type", f"{needed} is needed, not {_quote(value)}", self.at(key))
        return value

    def need(self, key: str, kind: type[_Value]) -> _Value:
        """A value that must be there; a text must not be empty."""
        value = self.maybe(key, kind)
        if value is None or value == "":
            raise FormError("missing_required_parameter", "it is required", self.at(key))
        return value

    def number(self, key: str, kind: type[_Value], low: float, high: float) -> _Value | None:
        """A number from `low` to `high`, or None."""
        value: Any = self.maybe(key, kind)
        if value is not None and not low <= value <= high:
            message = f"{_quote(value)} is not from {low} to {high}"
            raise FormError("invalid_value", message, self.at(key))
        return value

    def within(self, key: str) -> JsonFields | None:
        """The object under a key, or None."""
        value = self.maybe(key, dict)
        return None if value is None else JsonFields(value, self.at(key))

    def inside(self, key: str) -> JsonFields:
        """The object under a key, which must be there."""
        return JsonFields(self.need(key, dict), self.at(key))

    def objects(self, key: str) -> list[JsonFields]:
        """The objects of a list; none if it is missing."""
        found = []
        for number, value in enumerate(self.maybe(key, list) or ()):
            place = f"{self.at(key)}[{number}]"
            if not isinstance(value, dict):
                raise FormError("invalid_type", f"an object is needed, not {_quote(value)}", place)
            found.append(JsonFields(value, place))
        return found

    def unsupported(self, key: str, fix: str) -> FormError:
        """The error for a value that midstream does not support."""
        message = f"{_quote(self.table.get(key))} is not supported; {fix}"
        return FormError("unsupported_value", message, self.at(key))

    def text(self, key: str, kinds: Mapping[str, str], skipped: Collection[str] | None = ()) -> str:
        """The text of a content: a string, or parts in lines; nothing if it is missing.

        Args:
            key: of the content.
            kinds: the types of parts, and the field of each with its text.
            skipped: types of parts that are read elsewhere; None for all others.
        """
        value = self.table.get(key)
        if isinstance(value, str):
            return value
        if value is not None and not isinstance(value, list):
            message = f"text or a list of parts is needed, not {_quote(value)}"
            raise FormError("invalid_type", message, self.at(key))
        texts = []
        for part in self.objects(key):
            kind = part.need("type", str)
            if kind not in kinds and (skipped is None or kind in skipped):
                continue
            if kind not in kinds:
                raise part.unsupported("type", "the models read text only: send parts of text")
            texts.append(part.maybe(kinds[kind], str) or "")
        return "\n".join(texts)


def fields_of(body: object, refused: Mapping[str, tuple[JsonValue, ...]]) -> JsonFields:
    """A request's body, if it is an object that can be recorded.

    Keys in `refused`, with (what to do, harmless values), must be missing, null, false, empty or harmless.
    """
    if not isinstance(body, dict):
        raise FormError("invalid_type", "the body must be an object", None)
    for key, value in body.items():
        if reason := unfit({key: value}):
            items = enumerate(value if isinstance(value, list) else ())
            place = next((f"{key}[{number}]" for number, item in items if unfit([[item]])), key)
            # The key may be what is unfit.
            place = place.encode("utf-8", "backslashreplace").decode()
            raise FormError("invalid_value", f"it cannot be kept: {reason}", place)
    for key, (fix, *harmless) in refused.items():
        if body.get(key) not in (None, False, [], *harmless):
            raise FormError("unsupported_parameter", f"it is not supported; {fix}", key)
    return JsonFields(body)


def sampling_of(fields: JsonFields, limits: Sequence[str], stop: str = "") -> dict[str, Any]:
    """What a body sets of a `Sampling`; `limits` are keys of max_tokens, the first counts, `stop` that of stop."""
    found: dict[str, Any] = {
        "temperature": fields.number("temperature", float, 0, 2),
        "top_p": fields.number("top_p", float, 1e-9, 1),
    }
    numbers = [fields.number(key, int, 1, _LARGEST) for key in limits]
    found["max_tokens"] = next((number for number in numbers if number is not None), None)
    stops = fields.table.get(stop)
    if stops is not None:
        stops = [stops] if isinstance(stops, str) else stops
        if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
            message = "a text or a list of texts is needed, none of them empty"
            raise FormError("invalid_type", message, fields.at(stop))
        found["stop"] = tuple(stops)
    return {name: value for name, value in found.items() if value is not None}


def tools_of(
    fields: JsonFields, *, kinds: Collection[str | None] = ("function",), inner: str = "", schema: str = "parameters"
) -> list[JsonObject]:
    """A request's tools in chat completions' form; `inner` and `schema` are the keys of a tool's fields and schema."""
    found: list[JsonObject] = []
    for tool in fields.objects("tools"):
        if tool.table.get("type") not in kinds:
            raise tool.unsupported("type", "no tool is built in: send functions")
        function = tool.inside(inner) if inner else tool
        name, description = function.need("name", str), function.maybe("description", str)
        if not NAME.fullmatch(name):
            message = f"{_quote(name)} is not 1 to 128 letters, digits, '_', '-' and '.'"
            raise FormError("invalid_value", message, function.at("name"))
        described: JsonObject = {"description": description} if description else {}
        parameters = function.maybe(schema, dict) or {"type": "object", "properties": {}}
        found.append({"type": "function", "function": {"name": name, **described, "parameters": parameters}})
    return found


def tool_options(choice: JsonValue, tools: Sequence[JsonObject]) -> tuple[tuple[JsonObject, ...], JsonObject]:
    """(the tools to offer by a tool choice, the options of one that forces a call)."""
    if choice in (None, "auto", "none"):
        return () if choice == "none" else tuple(tools), {}
    fields = JsonFields({"tool_choice": choice})
    if isinstance(choice, dict) and choice.get("type") == "function":
        chosen = fields.inside("tool_choice")
        function = chosen.within("function") or chosen
        choice = {"type": "function", "function": {"name": function.need("name", str)}}
    elif choice != "required":
        raise fields.unsupported("tool_choice", 'send "auto", "none", "required" or a function')
    return tuple(tools), {"tool_choice": choice}


def other_options(fields: JsonFields, read: Collection[str]) -> JsonObject:
    """The fields of a body that no reader of it knows: a server gets them as they are."""
    if taken := next((key for key in fields.table if key in _TAKEN and key not in read), None):
        raise FormError("unsupported_parameter", "this API has no such field: remove it", taken)
    return {key: value for key, value in fields.table.items() if value is not None and key not in {*_READ, *read}}


def find_changing(options: Mapping[str, object]) -> str | None:
    """The name of an option that changes a reply, if there is one."""
    harmless = (None, [], {})
    return next((key for key, value in options.items() if value not in (*harmless, *_HARMLESS.get(key, ()))), None)


def media_of(messages: Sequence[Message]) -> str | None:
    """The place of the first part of a message that is no text, such as an image."""
    for number, message in enumerate(messages):
        parts = message.fields.get("content")
        for place, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, dict) and part.get("type") not in ("text", "refusal"):
                return f"messages[{number}].content[{place}]"
    return None


def schema_of(form: JsonFields | None, inner: str = "") -> JsonObject | None:
    """The JSON schema of a response format; it stands in the object under `inner` if that is given."""
    kind = form.need("type", str) if form else "text"
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema":
        raise form.unsupported("type", 'send "text", "json_object" or "json_schema"')
    return (form.inside(inner) if inner else form).need("schema", dict)


def system_messages(text: str | None) -> tuple[Message, ...]:
    """The message of a system prompt that stands outside of the messages; none without one."""
    return (Message(role="system", content=text),) if text else ()


def assistant_message(text: str, thoughts: str, calls: Sequence[FunctionCall]) -> Message:
    """A model's message of an earlier turn, in chat completions' form."""
    fields: JsonObject = {"content": None} if calls and not text else {}
    if thoughts:
        fields["reasoning_content"] = thoughts
    if calls:
        fields["tool_calls"] = [call.wire() for call in calls]
    return Message(role="assistant", content=text, fields=fields)


def tool_message(identifier: str, text: str) -> Message:
    """A tool's result, in chat completions' form."""
    return Message(role="tool", content=text, fields={"tool_call_id": identifier})


@dataclass(frozen=True, kw_only=True, slots=True)
class Relayed:
    """A chunk of a server's stream, and what it adds to the first choice, for the reply with this `id`."""

    id: str
    chunk: JsonObject
    pieces: Sequence[ReplyPiece]


def pieces_of(reply: ChatReply) -> Iterator[ReplyPiece]:
    """A whole reply as the pieces of a stream."""
    if reply.thoughts:
        yield ReplyPiece(kind="thoughts", text=reply.thoughts)
    if reply.speaks:
        yield ReplyPiece(kind="text", text=reply.text)
    for place, use in enumerate(reply.tool_uses):
        yield ReplyPiece(kind="call", text=use.arguments, place=place, id=use.id, name=use.name)


def call_id(reply_id: str, place: int) -> str:
    """An id of a call of nine letters and digits, as Mistral requires, made of the reply's id and the call's place."""
    return b32encode(sha256(f"{reply_id}/{place}".encode()).digest()).decode()[:9].lower()


def parts_of(body: JsonObject, reply_id: str) -> tuple[str, str, tuple[FunctionCall, ...]]:
    """The text, thoughts and tool calls of a server's chat completion, which its engine has checked."""
    choices: Any = body["choices"]
    message = choices[0].get("message") or {"content": choices[0].get("text")}
    thoughts, text = message.get("reasoning_content") or message.get("reasoning"), message.get("content")
    if isinstance(text, list):
        text = "".join(part["text"] for part in text if isinstance(part, dict) and isinstance(part.get("text"), str))
    uses = []
    for place, call in enumerate(message.get("tool_calls") or ()):
        arguments = call["function"].get("arguments") or "{}"
        # Some servers send an object.
        arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
        identifier = str(call.get("id") or call_id(reply_id, place))
        uses.append(FunctionCall(id=identifier, name=call["function"]["name"], arguments=arguments))
    return text or message.get("refusal") or "", thoughts if isinstance(thoughts, str) else "", tuple(uses)


def user_message(
    fields: JsonFields,
    role: str,
    kinds: Mapping[str, str],
    images: Mapping[str, Callable[[JsonFields], JsonObject]],
    skipped: Collection[str] = (),
) -> Message:
    """A message whose content may have images; `images` makes the `image_url` of a part of each of its types."""
    text, parts = fields.text("content", kinds, {*skipped, *images}), list[JsonValue]()
    content = fields.objects("content") if isinstance(fields.table.get("content"), list) else []
    for part in content:
        kind = part.need("type", str)
        if kind in images:
            parts.append({"type": "image_url", "image_url": images[kind](part)})
        elif kind in kinds:
            parts.append({"type": "text", "text": part.maybe(kinds[kind], str) or ""})
    has_images = any(part.table["type"] in images for part in content)
    return Message.model_validate({"role": role, "content": text, "fields": {"content": parts} if has_images else {}})


def some_messages(messages: Sequence[Message], key: str) -> tuple[Message, ...]:
    """The messages, of which there must be one."""
    if not messages:
        raise FormError("invalid_value", "it is empty; send a message", key)
    return tuple(messages)


def sse(data: Mapping[str, object], event: str = "") -> str:
    """One server-sent event. JSON's escapes keep every character of a text from ending a line."""
    return (f"event: {event}\n" if event else "") + f"data: {json.dumps(data)}\n\n"


def openai_error(error: FormError) -> JsonObject:
    """An error in the form of both of OpenAI's APIs."""
    status = error.status
    kind = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def _quote(value: object) -> str:
    """The beginning of a value, in characters that every encoding has."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
