"""An agent of another program for the atlas, in thirty lines: a loop around chat completions, without a framework.

It keeps what the model says and calls, and drops what it thinks, as most programs do. So a model that was trained with
its thoughts in view is lost at first (recipe `own-agent-tiny`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

_MOST_CALLS = 5
_OFFERED = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {argument: {"type": "string"}}}},
    }
    for name, argument in (("local_search", "query"), ("python", "code"))
]


async def solve(task: Any, session: Any, tools: Mapping[str, Callable[..., Awaitable[str]]]) -> str | None:
    """Ask the model, and call the tools that it names, until it answers."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task.question}]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {session.api_key}"}) as client:
        for _ in range(_MOST_CALLS):
            body = {"model": session.model, "messages": messages, "tools": _OFFERED}
            async with client.post(f"{session.base_url}/chat/completions", json=body, raise_for_status=True) as answer:
                message = (await answer.json())["choices"][0]["message"]
            calls = message.get("tool_calls") or ()
            if not calls:
                return message["content"]
            messages.append({"role": "assistant", "content": message["content"], "tool_calls": calls})
            for call in calls:
                named, arguments = tools.get(call["function"]["name"]), json.loads(call["function"]["arguments"])
                result = await named(**arguments) if named else "no such tool"
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return None
