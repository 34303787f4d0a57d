"""An engine that samples through verl's token servers: ids in, ids and log-probabilities out."""

from __future__ import annotations

from typing import Any, Protocol
from uuid import uuid4

from pydantic import Field

from midstream.components.component import Context, EngineConfig
from midstream.core.engine import Engine, Request
from midstream.core.errors import EngineError, PromptTooLongError
from midstream.core.trajectory import Call
from midstream.engines.local.codec import TokenizerCodec


class TokenClient(Protocol):
    """verl's `LLMServerClient`, as far as it is used."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        """Sample; the result has `token_ids`, `log_probs` and `stop_reason`."""
        ...


class VerlEngine(Engine):
    """`core.engine.Engine` over a `TokenClient`; `context` is the most tokens of prompt and reply together.

    `policy_version` is that of the weights that the servers hold. verl gives its servers no seed for a single request,
    so a sample does not repeat.
    """

    token_exact = True

    def __init__(self, client: TokenClient, codec: TokenizerCodec, *, name: str, context: int) -> None:
        self.codec, self.name, self.context, self.policy_version = codec, name, context, 0
        self._client = client

    async def sample(self, request: Request) -> Call:
        """Answer one request.

        Raises:
            PromptTooLongError: prompt and reply together exceed `context`.
            EngineError: the server failed, or answered without a log-probability for each token.
        """
        prompt_ids, sampling = tuple(self.codec.encode(request)), request.sampling
        if len(prompt_ids) + sampling.max_tokens > self.context:
            raise PromptTooLongError(
                f"a prompt of {len(prompt_ids)} tokens and {sampling.max_tokens} new ones do not fit",
                code="prompt-too-long",
                cause=f"learner.context = {self.context}",
                fix="raise learner.context, or lower max_tokens or the number of turns",
            )
        parameters: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": -1,
            "max_tokens": sampling.max_tokens,
            "logprobs": True,
        }
        if sampling.stop:
            parameters["stop"] = list(sampling.stop)
        version = self.policy_version
        try:
            output = await self._client.generate(uuid4().hex, prompt_ids=list(prompt_ids), sampling_params=parameters)
        except Exception as failure:  # whatever a server in another process raised, behind Ray's own errors
            raise EngineError(
                f"{self.name}: verl's token server failed: {type(failure).__name__}: {failure}",
                code="endpoint-failed",
                fix="look at verl's log (verl/verl.log in the run directory)",
            ) from failure
        ids, logprobs = tuple(output.token_ids), tuple(output.log_probs or ())
        if len(ids) != len(logprobs) or not ids:
            raise EngineError(
                f"{self.name}: verl's token server returned {len(ids)} tokens and {len(logprobs)} log-probabilities",
                code="token-ids-missing",
                fix="leave actor_rollout_ref.rollout.calculate_log_probs as midstream sets it",
            )
        return self.codec.call_of(request, prompt_ids, (ids, logprobs), policy_version=version)


class MadeEngineConfig(EngineConfig):
    """An engine that is made already, in place of the settings of one in a recipe's table."""

    borrowed = True

    engine: Any = Field(exclude=True)

    def build(self, context: Context) -> Engine:
        """Return it."""
        return self.engine
