"""A model on a Tinker server: the hosted service, or a server of one's own with the same API, such as SkyRL.

The SDK repeats what failed on the way, with a number that lets the server recognize a repeated request. What fails for
good is an `InfrastructureError` here. Settings need neither the SDK nor a tokenizer, which load when first used.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NoReturn

from midstream.core.engine import Engine, Request, Weights
from midstream.core.errors import DeadlineError, EngineError, MidstreamError, RecipeError, RefusedError, needs_extra
from midstream.core.threads import in_thread, start_thread
from midstream.core.trajectory import Call, Usage
from midstream_tinker.settings import KEY, TinkerConfig

_NO_KEY = "tml-none"  # the SDK sends nothing without a key of this form; a server of one's own may ignore it
_REFUSALS = {401: "key-refused", 402: "quota-spent", 403: "key-refused"}
_TOO_OLD = "sample_sequence_ids"  # newer SDKs insist on what SkyRL does not send


class TinkerEngine(Engine):
    """Samples from the base model until a learner sets `sampler` to a client of the weights that it trains."""

    token_exact = True
    positions = None  # the server's own limit

    def __init__(self, config: TinkerConfig, name: str) -> None:
        self.config, self.name = config, name
        self.policy_version = 0
        self.sampler: Any = None

    @cached_property
    def service(self) -> Any:
        """The SDK's client of the server; the first use connects. Call it within `ask`."""
        import tinker

        key = os.environ.get(KEY) or (None if self.config.base_url is None else _NO_KEY)
        return tinker.ServiceClient(base_url=self.config.base_url, api_key=key)

    @cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer. Raises `RecipeError` if it cannot be loaded."""
        with needs_extra("an engine of type tinker needs transformers, not installed here", "tinker"):
            from midstream.engines.local.codec import load_tokenizer, one_line
        name = self.config.tokenizer or self.config.model
        try:
            return load_tokenizer(name)
        except (OSError, ValueError) as failure:
            raise RecipeError(
                f"the tokenizer {name!r} could not be loaded: {one_line(failure)}",
                code="model-not-loaded",
                fix=f"set engines.{self.name}.tokenizer to its directory, or to its name on the Hugging Face Hub",
            ) from failure

    @cached_property
    def codec(self) -> Any:
        """The model's `TokenizerCodec`."""
        tokenizer = self.tokenizer
        from midstream.engines.local.codec import TokenizerCodec

        return TokenizerCodec(tokenizer, self.name, self.config.chat_template_kwargs)

    def ask(self, what: str, call: Callable[[], Any]) -> Any:
        """The result of a call of the SDK, which may give a future. It blocks; `what` is for errors.

        Raises:
            EngineError: the call failed for good, or took longer than `timeout_s`.
            RefusedError: the server refuses every request.
        """

        def result() -> Any:  # in a thread without an event loop: the SDK warns where a call blocks one
            made = call()
            return made.result() if hasattr(made, "result") else made  # a client, before version 0.36

        with self._failures(what):
            return start_thread(result, "tinker").result(self.config.timeout_s)

    async def sample(self, request: Request) -> Call:
        """Answer one request.

        Raises:
            EngineError: the server failed for good; `RefusedError` if it refuses every request.
            DeadlineError: `request.deadline_s` passed first.
        """
        prompt_ids, sampling = tuple(self.codec.encode(request)), request.sampling
        timeout_s = self.config.timeout_s
        if request.deadline_s is not None:
            timeout_s = min(timeout_s, request.deadline_s - time.monotonic())
        if self.sampler is None:
            self.sampler = await in_thread(lambda: self.ask("sample from the base model", self._base))
        import tinker

        ends = self.codec.end_ids
        # A server takes stops as ids or as strings, not both.
        stop = [*sampling.stop, *(self.tokenizer.decode([end]) for end in ends)] if sampling.stop else list(ends)
        asked = tinker.SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=request.seed % 2**31,
            stop=stop,
        )
        with self._failures("sample", request.deadline_s):
            future = self.sampler.sample(tinker.ModelInput.from_ints(list(prompt_ids)), 1, asked)
            future = future.future() if hasattr(future, "future") else future
            answer = await asyncio.wait_for(asyncio.wrap_future(future), max(0.0, timeout_s))
        [sequence] = answer.sequences
        ids = self._until_stop(tuple(map(int, sequence.tokens)), sampling.stop)
        usage = Usage(
            prompt_tokens=len(prompt_ids),
            completion_tokens=len(ids),
            cost_usd=len(prompt_ids) * (self.config.price_prompt_usd or 0.0) / 1e6
            + len(sequence.tokens) * (self.config.price_completion_usd or 0.0) / 1e6,
        )
        sampled = ids, tuple(map(float, sequence.logprobs or ()))[: len(ids)]
        return self.codec.call_of(request, prompt_ids, sampled, policy_version=self.policy_version, usage=usage)

    async def use_weights(self, weights: Weights) -> None:
        """Record the version of the weights, which the learner has made `sampler` sample from."""
        self.policy_version = weights.version

    async def close(self) -> None:
        """End the session; a later request begins a new one."""
        if (service := vars(self).pop("service", None)) is not None:
            self.sampler = None
            start_thread(lambda: service.holder.close(), "tinker")  # one that never connected would try once more

    def _base(self) -> Any:
        return self.service.create_sampling_client(base_model=self.config.model)

    def _until_stop(self, ids: tuple[int, ...], stops: Sequence[str]) -> tuple[int, ...]:
        """The ids up to the first end token, or the first token that completes a stop string.

        Servers differ in whether they cut there, before it, or not at all; the beginning of a sample is a sample.
        """
        ids = next((ids[: place + 1] for place, token in enumerate(ids) if token in self.codec.end_ids), ids)
        if not any(stop in self.codec.decode(ids) for stop in stops):
            return ids
        ends = range(1, len(ids) + 1)
        return next(ids[:end] for end in ends if any(stop in self.codec.decode(ids[:end]) for stop in stops))

    @contextmanager
    def _failures(self, what: str, deadline_s: float | None = None) -> Iterator[None]:
        """Raise what the SDK raises as errors of this engine."""
        try:
            with needs_extra("an engine of type tinker needs the SDK tinker, not installed here", "tinker"):
                yield
        except MidstreamError:
            raise
        except TimeoutError as failure:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise DeadlineError(
                    f"{self.name} gave no answer before the deadline",
                    code="deadline",
                    fix="raise the trajectory's deadline, or lower max_tokens",
                ) from failure
            self._raise(f"no answer within {self.config.timeout_s:g} s", what, failure)
        except Exception as failure:  # noqa: BLE001 - the SDK also raises ValueError, RuntimeError and AssertionError
            self._raise(f"{type(failure).__name__}: {' '.join(str(failure).split())[:300]}", what, failure)

    def _raise(self, reason: str, what: str, failure: Exception) -> NoReturn:
        cause: BaseException | None = failure  # the SDK raises other errors from that of an answer
        while cause is not None and not hasattr(cause, "status_code"):
            cause = cause.__cause__
        status = getattr(cause, "status_code", None)
        refused = getattr(getattr(failure, "category", None), "value", "") == "user"  # of a pass that began and failed
        place = self.config.base_url or "the hosted Tinker service"
        said = f"{self.name} at {place} could not {what}: {reason}"
        if status in _REFUSALS or str(failure).startswith("The api_key"):
            raise RefusedError(
                said,
                code=_REFUSALS.get(status or 0, "missing-key"),
                fix="check the account and its credit" if status == 402 else f"export {KEY}=<your key>",
            ) from failure
        if _TOO_OLD in str(failure):
            fix = "pip install 'tinker==0.25.*', which speaks with servers such as SkyRL 0.4"
            raise EngineError(said, code="tinker-version", fix=fix, retryable=False) from failure
        raise EngineError(
            said,
            code="endpoint-failed",
            fix="look at the server's log, or raise timeout_s" if self.config.base_url else "wait, then resume the run",
            retryable=not refused and not (isinstance(status, int) and 400 <= status < 500),
        ) from failure
