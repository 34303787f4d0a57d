"""A server whose model has a small context, and what real servers do with a request that exceeds it.

    async with SmallServer("vllm", context=3000) as server:
        engine = OpenAICompatibleEngine(OpenAIConfig(model="m", base_url=server.base_url), "planner")

Four characters are a token. A request exceeds the context if prompt and `max_tokens` together do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from support.flaky_server import Asked, Connection, FlakyServer
from support.llm_server import AgentFlowReplies, Body, prompt_of

# The answers as these servers word them; `cuts` and Ollama answer from the end of the prompt, without a word.
REFUSALS: dict[str, Callable[[int, int], Body]] = {
    "vllm": lambda size, context: {
        "error": {
            "message": f"This model's maximum context length is {context} tokens. However, your request needs {size}.",
            "type": "BadRequestError",
            "code": 400,
        }
    },
    "llama_cpp": lambda size, context: {
        "error": {
            "message": "the request exceeds the available context size, try increasing it",
            "type": "exceed_context_size_error",
            "code": 400,
            "n_prompt_tokens": size,
            "n_ctx": context,
        }
    },
    "openai": lambda size, context: {
        "error": {"message": "Your input exceeds what this model can take.", "code": "context_length_exceeded"}
    },
    "unworded": lambda size, context: {"error": {"message": "Bad request.", "code": None}},
}
MODELS: dict[str, Callable[[int], Body]] = {
    "/v1/models": lambda context: {"data": [{"id": "m", "object": "model", "max_model_len": context}]},
    "/api/ps": lambda context: {"models": [{"name": "m:latest", "model": "m:latest", "context_length": context}]},
}


class SmallServer(FlakyServer):
    """An asynchronous context manager. `kind` is one of `REFUSALS`, or "ollama" or "cuts", which refuse nothing.

    `listing` is the path of `MODELS` that it serves. `refused` and `cut` count requests that exceeded the context.
    """

    def __init__(self, kind: str, *, context: int, listing: str = "", turns: int = 99, **more: Any) -> None:
        super().__init__(self._answered, **more)
        self.kind, self.context, self.listing = kind, context, listing
        self.play = AgentFlowReplies(turns=turns, answer="hello")
        self.refused = self.cut = self.listed = 0

    def _answered(self, body: Body, number: int) -> str:
        """The four modules' replies; the generator is right about every second seed."""
        reply = self.play(body)
        return "<answer>bye</answer>" if reply == "<answer>hello</answer>" and body["seed"] % 2 else reply

    def _handle(self, connection: Connection, head: bytes, raw: bytes) -> None:
        method, path, _ = head.decode().split(" ", 2)
        if method == "POST":
            return super()._handle(connection, head, raw)
        self.listed += 1
        listing = MODELS[path](self.context) if path == self.listing else {"error": "no such path"}
        return connection.send(200 if path == self.listing else 404, json.dumps(listing).encode())

    def _answer(self, connection: Connection, asked: Asked) -> None:
        size = len(prompt_of(asked.body)) // 4 + asked.body["max_tokens"]
        if size > self.context and not connection.lost:
            if self.kind in REFUSALS:
                self.refused += 1
                return connection.send(400, json.dumps(REFUSALS[self.kind](size, self.context)).encode())
            self.cut += 1
        return super()._answer(connection, asked)
