"""An engine with given replies: for tests, examples and demonstrations without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from midstream.core.engine import Engine, Request
from midstream.core.errors import EngineError
from midstream.core.trajectory import Call, Usage


class ScriptedEngine(Engine):
    """Answers every request with `reply(request)`, or with the next of a list of replies.

    Usage counts each UTF-8 byte as a token. With `token_ids` the calls carry those bytes as token ids, each with
    log-probability 0: a deterministic policy.
    """

    def __init__(
        self, reply: Callable[[Request], str] | Sequence[str], *, name: str = "scripted", token_ids: bool = False
    ) -> None:
        self.name, self.token_exact = name, token_ids
        self.requests: list[Request] = []
        if callable(reply):
            self._reply = reply
            return
        replies = iter(reply)

        def next_reply(request: Request) -> str:
            for text in replies:
                return text
            raise EngineError(
                f"no scripted reply is left for the {request.role}",
                code="no-scripted-reply",
                fix=f"give more than {len(reply)} replies, or a function of the request",
            )

        self._reply = next_reply

    async def sample(self, request: Request) -> Call:
        """The scripted reply; `EngineError` when a list of replies is used up."""
        self.requests.append(request)
        completion = self._reply(request)
        prompt = request.prompt or "\n".join(message.content for message in request.messages)
        prompt_ids, completion_ids = tuple(prompt.encode()), tuple(completion.encode())
        return request.answered(
            self.name,
            completion,
            prompt_ids=prompt_ids if self.token_exact else (),
            completion_ids=completion_ids if self.token_exact else (),
            logprobs=(0.0,) * len(completion_ids) if self.token_exact else (),
            finish_reason="stop",
            usage=Usage(prompt_tokens=len(prompt_ids), completion_tokens=len(completion_ids)),
        )
