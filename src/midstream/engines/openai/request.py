"""What an OpenAI-compatible server is asked: the body of a request, and what a trace keeps of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from midstream.core.protocols import Request
from midstream.engines.openai.tool_calls import as_fields

# vLLM takes what a request leaves open from the model's generation_config.json, and Qwen's, say, cuts off at top_k 20.
_WHOLE_DISTRIBUTION: dict[str, JsonValue] = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Outgoing:
    """A request as it goes out: `path` below base_url, and `sent`, all of the body but messages and prompt."""

    path: str
    body: bytes
    sent: dict[str, JsonValue]


def outgoing(
    request: Request,
    *,
    model: str,
    limit: str,
    token_ids: bool,
    stream: bool,
    extra_body: dict[str, JsonValue],
    prompt_ids: Sequence[int] | None = None,
) -> Outgoing:
    """Chat messages go to chat/completions, a text prompt or `prompt_ids` to completions.

    `limit` names the chat field that bounds the completion; `token_ids` asks for the sampled ids and log-probabilities
    of the whole distribution, and, since only vLLM gives them, for the stop string where the request keeps it;
    `extra_body` has the last word on every field.
    """
    chat = prompt_ids is None and not request.prompt
    sampling = request.sampling
    fields: dict[str, Any] = {"model": model, "temperature": sampling.temperature, "top_p": sampling.top_p}
    fields |= {"seed": request.seed % 2**31, limit if chat else "max_tokens": sampling.max_tokens}
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    if token_ids:
        fields |= {"return_token_ids": True, "logprobs": True if chat else 1} | _WHOLE_DISTRIBUTION
        if request.keep_stop:
            fields["include_stop_str_in_output"] = True
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    sent = fields | extra_body
    body = dict(sent)
    if request.json_schema is not None and "response_format" not in body:
        name = request.role or "reply"
        schema = {"name": name, "schema": dict(request.json_schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
        sent["json_schema"] = name
    if chat and request.tools and "tools" not in body:
        body["tools"] = [dict(tool) for tool in request.tools]
        sent["tools"] = len(request.tools)
    if chat:
        plain = [{"role": one.role, "content": one.content} for one in request.messages]
        body.setdefault("messages", as_fields(request.messages) if request.tools else plain)
    else:
        body.setdefault("prompt", request.prompt if prompt_ids is None else list(prompt_ids))
    return Outgoing(path="chat/completions" if chat else "completions", body=json.dumps(body).encode(), sent=sent)
