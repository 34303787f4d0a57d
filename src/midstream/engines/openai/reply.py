"""What an OpenAI-compatible server sent back, checked: a usable reply, or the reason why it is not one.

A chat model's native function calls are fields of a message on the server, and text in midstream's stream:

    {"content": "I add.", "tool_calls": [{"function": {"name": "add", "arguments": "{\\"a\\": 1}"}}]}
    I add.
    <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>

Calls from a server become text, and return as fields in the next request. A call that a model got wrong is text in both
directions: a server refuses a conversation with an invalid call in it.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeGuard

from pydantic import JsonValue

from midstream.core.data import JsonObject
from midstream.core.errors import TransientError, UnsupportedError
from midstream.core.tool_calls import CLOSE, OPEN, functions_in, parsed, replace_blocks
from midstream.core.trajectory import Message, Usage

# vLLM, SGLang, llama.cpp, Ollama, OpenRouter, Mistral and DeepSeek; vLLM and xAI; Anthropic; Gemini; TGI; DashScope.
_TOO_LONG = re.compile(
    r"context (length|size|window)|maximum (model|prompt) length|(prompt|input) is too long|"
    r"maximum number of tokens allowed|max_new_tokens. must be|range of input length",
    re.IGNORECASE,
)
# A certain token's log-probability is 0, in half precision a little more.
_ROUNDING = 1e-3
_RETRIED_STATUS = {408, 409, 425, 429}
_USAGE = (("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
# The names of functions that OpenAI accepts.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Bytes of an answer that is not a stream: 100,000 tokens with ids and log-probabilities.
LONGEST_BODY = 32 << 20
# Characters of a server's words that are looked at.
LONGEST_WORDS = 2000


def may_pass(status: int) -> bool:
    """Whether another attempt may succeed after this status."""
    return status >= 500 or status in _RETRIED_STATUS


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedReply:
    """The first choice of a completion; ids and logprobs are empty unless they were requested."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  # of the prompt's, those that the server read from its cache
    cost_usd: float | None = None  # if the server states it
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    # The whole answer, where it is for an agent of another program.
    body: JsonObject = field(default_factory=dict)


def decode_body(body: bytes | bytearray) -> JsonObject:
    """The body as an object; {} for any other body."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def reported_error(status: int, data: Mapping[str, JsonValue], body: bytes | bytearray) -> tuple[int, str, bool] | None:
    """The error in an answer's body, which may come under status 200, or in a stream's event; None without one.

    It is the status, the server's words, and whether prompt and completion do not fit the model's context.
    """
    error = data.get("error")
    fields = error if isinstance(error, dict) else {"message": error}
    code = fields.get("code")
    if status == 200 and error:
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
    if status == 200:
        return None
    text = _valid_unicode(str(fields.get("message") or body.decode("utf-8", "replace")))[:LONGEST_WORDS]
    # OpenAI's 429 for an empty account, which no pause refills.
    if code == "insufficient_quota":
        status = 402
    named = {str(code), str(fields.get("type"))} & {"context_length_exceeded", "exceed_context_size_error"}
    too_long = bool(named) or (status in (400, 413, 422) and _TOO_LONG.search(text) is not None)
    # llama.cpp's.
    if too_long and "n_ctx" in fields:
        text += f" ({fields.get('n_prompt_tokens')} tokens, context {fields['n_ctx']})"
    return status, text, too_long


def checked_reply(
    data: Mapping[str, JsonValue], billed: str, *, token_ids: bool, relayed: bool = False
) -> CheckedReply:
    """The first choice of a body that came with status 200; `billed` is its cost by LiteLLM's header, "" without one.

    It may lack a text where it is `relayed` to an agent, which may have asked for audio. Raises `TransientError` if it
    is no completion, `UnsupportedError` if it is one without the requested token ids.
    """
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choice := choices[0], dict):
        raise TransientError("the answer holds no choice" if data else "the answer is cut off or not JSON")
    if relayed and not all(isinstance(other, dict) for other in choices):
        raise TransientError("the answer holds a choice that is not an object")
    usage = _object(data, "usage")
    finish_reason = choice.get("finish_reason")
    # OpenRouter's, where a provider broke down in the middle.
    if finish_reason == "error":
        raise TransientError("the answer ended in an error")
    message = _object(choice, "message")
    content = message.get("content", choice.get("text"))
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        content = "".join(part for part in parts if isinstance(part, str))
    text = with_calls(content, message.get("tool_calls"))
    # Some servers begin a refusal with an empty content.
    text = text or message.get("refusal") or text
    others = [message[key] for key in message.keys() - {"role", "content", "refusal"}]
    if text is None and message and (finish_reason == "length" or (relayed and any(others))):
        # A reasoning model spent all its tokens on thoughts: its output, not a fault of the server.
        text = ""
    if not isinstance(text, str):
        raise TransientError("the answer holds no text")
    # Text first: a broken answer lacks its token ids too, and another attempt may bring both.
    exact = _token_fields(data, choice) if token_ids else {}
    if text and token_ids and not exact["completion_ids"]:
        raise TransientError("the answer holds text, and no token ids for it")
    return CheckedReply(
        text=_valid_unicode(text),
        finish_reason=_valid_unicode(finish_reason) if isinstance(finish_reason, str) else "",
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_count(_object(usage, "prompt_tokens_details").get("cached_tokens")),
        cost_usd=_stated_cost(usage, billed),
        **exact,
    )


def _stated_cost(usage: Mapping[str, JsonValue], billed: str) -> float | None:
    """The dollars that OpenRouter states in a body, LiteLLM in a header."""
    if (cost := _dollars(usage.get("cost"))) is None:
        # The header of a stream was sent before its cost was known.
        return _dollars(billed) or None
    # With a key of its provider, OpenRouter's cost is its fee.
    details = _object(usage, "cost_details") if usage.get("is_byok") is True else {}
    return cost + (_dollars(details.get("upstream_inference_cost")) or 0.0)


def _dollars(value: object) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if 0 <= number < 1e6 else None


def _object(data: Mapping[str, JsonValue], name: str) -> JsonObject:
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def no_token_ids(seen: str) -> UnsupportedError:
    """The error of training on a server that returns no token ids, or does not know how they are requested."""
    return UnsupportedError(
        f"training is impossible with this server: {seen}",
        code="token-ids-missing",
        fix="vllm serve MODEL --logprobs-mode processed_logprobs (0.10.2 or newer), or an engine of type "
        "transformers_local; or set token_ids = false to run and evaluate only",
    )


def _valid_unicode(text: str) -> str:
    """JSON can spell lone surrogates, which no file can hold."""
    return text.encode("utf-8", "replace").decode()


def usage_in(data: Mapping[str, JsonValue], billed: str) -> Usage:
    """What an answer of any API says that it used, in the words of chat completions or of the Responses API."""
    usage = _object(data, "usage")
    prompt, completion = (_count(usage.get(name, usage.get(other))) for name, other in _USAGE)
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cost_usd=_stated_cost(usage, billed) or 0.0)


def _count(value: object) -> int:
    """JSON's integers have no limit, a price times one has: a number too large for any server counts as 0."""
    return value if type(value) is int and 0 <= value < 2**53 else 0


def _token_fields(data: Mapping[str, JsonValue], choice: Mapping[str, JsonValue]) -> dict[str, Any]:
    """Prompt ids, completion ids and log-probabilities, of a chat choice (`content[].logprob`) or a text choice."""
    prompt_ids = choice.get("prompt_token_ids") or data.get("prompt_token_ids")
    completion_ids = choice.get("token_ids")
    field = _object(choice, "logprobs")
    content = field.get("content")
    # A chat's stand in `content`, another completion's in `token_logprobs`.
    if isinstance(content, list):
        values = [entry.get("logprob") if isinstance(entry, dict) else None for entry in content]
    else:
        listed = field.get("token_logprobs")
        values = listed if isinstance(listed, list) else []
    logprobs = [
        float(value)
        for value in values
        if isinstance(value, int | float) and not isinstance(value, bool) and -1e9 < value < _ROUNDING
    ]
    logprobs = logprobs if len(logprobs) == len(values) else []
    if not _are_ids(prompt_ids) or not _are_ids(completion_ids) or len(completion_ids) != len(logprobs):
        named = (("prompt", prompt_ids), ("completion", completion_ids))
        sizes = [f"{name}: {len(value) if isinstance(value, list) else 'none'}" for name, value in named]
        raise no_token_ids(f"token ids {', '.join(sizes)}; log-probabilities: {len(logprobs)}")
    return {
        "prompt_ids": tuple(prompt_ids),
        "completion_ids": tuple(completion_ids),
        "logprobs": tuple(logprobs),
    }


def _are_ids(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**31 for item in value)


def with_calls(content: JsonValue, calls: JsonValue) -> JsonValue:
    """A message's content, followed by its `tool_calls` as text, if it has any.

    Arguments that are not a JSON object stand in a call's text as a string. Malformed calls raise `TransientError`.
    """
    if not calls:
        return content
    if not isinstance(calls, list) or not isinstance(content, str | None):
        raise TransientError("the answer's tool calls are not a list, or its content is not text")
    texts = [content] if content else []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise TransientError("the answer holds a tool call without a function's name")
        # Nearly all servers send arguments as the text of an object, "" for no arguments.
        arguments = function.get("arguments")
        if arguments is None or arguments == "":
            arguments = {}
        elif isinstance(arguments, str) and isinstance(value := parsed(arguments), dict):
            arguments = value
        text = json.dumps({"name": function["name"], "arguments": arguments}, ensure_ascii=False)
        # JSON's escapes keep marks inside of arguments from ending the block.
        text = text.replace(CLOSE, r"<\/tool_call>").replace(OPEN, r"\u003ctool_call>")
        texts.append(f"{OPEN}{text}{CLOSE}")
    return "\n".join(texts)


def as_fields(messages: Sequence[Message]) -> list[JsonObject]:
    """Messages as a server with native calls expects them: calls with ids, followed by their results in order.

    The result of an invalid call comes from the user, after the others.
    """
    fields: list[JsonObject] = []
    numbers, rest = count(1), deque(messages)
    while rest:
        message, results = rest.popleft(), deque[str]()
        while message.role == "assistant" and rest and rest[0].role == "tool":
            results.append(rest.popleft().content)
        if results:
            fields += _with_results(message.content, results, numbers)
        else:
            # No server accepts a tool's message without its call.
            fields.append({"role": "user" if message.role == "tool" else message.role, "content": message.content})
    return fields


def _with_results(reply: str, results: deque[str], numbers: count[int]) -> list[JsonObject]:
    """An assistant's message, and the results of its calls."""
    calls: list[JsonValue] = []
    answers: list[JsonObject] = []
    others: list[str] = []

    def take(block: re.Match[str]) -> str:
        """Assign the next results to a block's calls; returns what the text keeps of the block."""
        functions, expected = functions_in(parsed(block[1]))
        named = all(_NAME.fullmatch(function["name"]) for function in functions)
        own = [results.popleft() for _ in range(min(expected, len(results)))]
        if not functions or not named or len(own) < expected:
            others.extend(own)
            return block[0]
        for function, result in zip(functions, own, strict=True):
            # Mistral requires nine letters and digits.
            name = f"call{next(numbers):05d}"
            calls.append({"id": name, "type": "function", "function": {**function}})
            answers.append({"role": "tool", "tool_call_id": name, "content": result})
        return ""

    kept = replace_blocks(reply, take)
    message: JsonObject = {"role": "assistant", "content": reply}
    if calls:
        message = {"role": "assistant", "content": kept.strip() or None, "tool_calls": calls}
    return [message, *answers, *({"role": "user", "content": result} for result in (*others, *results))]
