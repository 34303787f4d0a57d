"""A Hugging Face causal language model, sampled in process behind a barrier.

A batch is drawn when every live trajectory waits, sorted by the trajectory's place in its rollout: neither tool
latency nor the order of completion changes a bit of the result. Each request draws from its own seed. What was
sampled is recorded as token ids with log-probabilities, so its calls can be trained on.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pydantic import JsonValue
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from midstream.core.engine import PIN, Engine, Pin, Request, Weights
from midstream.core.errors import EngineError, PromptTooLongError, UnsupportedError
from midstream.core.trajectory import Call
from midstream.engines.adapters import adapter_of
from midstream.engines.local.codec import TokenizerCodec
from midstream.engines.local.decoding import Sampled, generate
from midstream.engines.local.prefill import Prefill


class Sampler(Protocol):
    """Samples in place of an engine's own model what is pinned to weights, e.g. in another process."""

    async def generate(
        self, pin: Pin, asked: Sequence[tuple[tuple[int, ...], Request]], reference: bool, adapter: str
    ) -> list[Sampled]:
        """What `decoding.generate` returns, with the weights of the pin, its reference policy, or a role's adapter."""
        ...

    def leave(self, pin: Pin, order: int | None) -> None:
        """Forget the prompts of a trajectory that has ended; of all if `order` is None."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class _Waiting:
    request: Request
    prompt_ids: tuple[int, ...]
    future: asyncio.Future[Call]
    weights: tuple[bool, str]  # whether they are the reference policy's; else the adapter of a role, if it has one


@dataclass(eq=False, slots=True)
class _Barrier:
    """The trajectories that are sampled together, and those of them that wait: all of an engine, or those of a pin."""

    pin: Pin | None
    live: set[int] = field(default_factory=set)
    waiting: dict[int, _Waiting] = field(default_factory=dict)


class TransformersLocal(Engine):
    """A `LockstepEngine` over a model object that a learner may share and update."""

    token_exact = True

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str = "local",
        max_batch: int = 256,
        chat_template_kwargs: Mapping[str, JsonValue] | None = None,
    ) -> None:
        self.model, self.name, self.max_batch = model, name, max_batch
        self.tokenizer: Any = tokenizer  # its stubs allow for batches everywhere
        # Both the tokenizer and the model's generation settings may name tokens that end a completion.
        configured = getattr(model.generation_config, "eos_token_id", None)
        ends = (self.tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured]))
        end_ids = tuple(dict.fromkeys(int(token) for token in ends if token is not None))
        self.codec = TokenizerCodec(tokenizer, name, chat_template_kwargs, end_ids=end_ids)
        self.policy_version = 0
        self._barriers: dict[Pin | None, _Barrier] = {}
        self.sampler: Sampler | None = None
        # Gives the reference policy while its context lasts. Without a learner it is the model itself.
        self.reference_policy: Callable[[], AbstractContextManager[PreTrainedModel]]
        self.reference_policy = lambda: nullcontext(self.with_adapter(""))
        # Those of roles that have one of their own; then every role has.
        self.adapters = tuple(name for name in getattr(model, "peft_config", ()) if name != "default")
        self._prefills: dict[tuple[bool, str], Prefill] = defaultdict(Prefill)  # by weights

    @property
    def positions(self) -> int | None:
        """The most tokens of prompt and completion together, if the model has a limit."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    async def use_weights(self, weights: Weights) -> None:
        """The newest weights are the model's own: calls from now on have their version."""
        self.policy_version = weights.version

    def join(self, order: int) -> None:
        """Wait for the trajectory at place `order` before sampling."""
        self._barrier(PIN.get()).live.add(order)

    def leave(self, order: int) -> None:
        """Wait for it no longer; the others may be ready now."""
        barrier = self._barrier(PIN.get())
        barrier.live.discard(order)
        self._forget(barrier.pin, order)
        self._sample_if_all_wait(barrier)
        self._forget_if_none_live(barrier)

    async def sample(self, request: Request, *, reference: bool = False) -> Call:
        """Queue the request and wait for the batch that answers it; `reference` asks the reference policy."""
        prompt_ids = self.prompt_of(request)
        barrier = self._barrier(request.pin)
        if request.order in barrier.waiting:
            raise UnsupportedError(
                f"trajectory {request.order} asked {self.name} twice at once",
                code="engine-busy",
                fix="await a trajectory's requests one after the other, and rollouts too",
            )
        future: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
        barrier.waiting[request.order] = _Waiting(
            request=self.limited(request, prompt_ids),
            prompt_ids=prompt_ids,
            future=future,
            weights=(reference, "" if reference else self.adapter_for(request)),
        )
        try:
            self._sample_if_all_wait(barrier)
            return await future
        finally:
            barrier.waiting.pop(request.order, None)

    def _barrier(self, pin: Pin | None) -> _Barrier:
        return self._barriers.setdefault(pin, _Barrier(pin))

    def adapter_for(self, request: Request) -> str:
        """The adapter of a request's role, "" where roles have none of their own."""
        name = adapter_of(request.role)
        if self.adapters and name not in self.adapters:
            raise EngineError(
                f"{self.name} has adapters of the roles {', '.join(self.adapters)}, and none of {request.role!r}",
                code="unknown-role",
                fix="name the directory of one of them as the model, e.g. policy/planner, which then is that of all",
            )
        return name if self.adapters else ""

    def with_adapter(self, name: str) -> PreTrainedModel:
        """The model, computing with an adapter that `adapter_for` gave; "" switches those of roles off."""
        if self.adapters:
            # Imported where used: it takes a second.
            from peft.tuners.tuners_utils import BaseTunerLayer

            for layer in self.model.modules():
                if isinstance(layer, BaseTunerLayer):
                    # `layer.set_adapter` would also set `requires_grad`, which is slow; the learner sets it itself.
                    layer._active_adapter = [name] if name else []
        return self.model

    def prompt_of(self, request: Request) -> tuple[int, ...]:
        """The token ids of a request's prompt. What the model cannot compute is refused."""
        prompt_ids = tuple(self.codec.encode(request))
        if not prompt_ids:
            raise EngineError(
                f"{self.name} was asked to continue a prompt of no tokens",
                code="empty-prompt",
                fix="put something into the prompt",
            )
        limit, max_tokens = self.positions, request.max_tokens or 1
        if limit is not None and len(prompt_ids) + max_tokens > limit:
            size = f"{len(prompt_ids)} tokens and {max_tokens} new ones"
            what = f"a prompt of {size} do not fit {self.name}'s {limit} positions"
            fix = "lower max_tokens or the number of turns, or use a model with a longer context"
            raise PromptTooLongError(what, code="prompt-too-long", fix=fix)
        return prompt_ids

    def limited(self, request: Request, prompt_ids: Sequence[int]) -> Request:
        """The request, with the rest of the model's positions as its limit if it has none."""
        if request.max_tokens is not None or self.positions is None:
            return request
        limit = {"max_tokens": self.positions - len(prompt_ids)}
        return replace(request, sampling=request.sampling.model_copy(update=limit))

    def sampling_failed(self, count: int, failure: BaseException) -> EngineError:
        """The error of each of `count` requests that were sampled together."""
        error = EngineError(
            f"{self.name} could not sample {count} completions: {failure}",
            code="sampling-failed",
            fix="lower max_batch or max_tokens",
        )
        error.__cause__ = failure
        return error

    def _sample_if_all_wait(self, barrier: _Barrier) -> None:
        """Answer every waiting request once no live trajectory is elsewhere."""
        if not barrier.waiting or not barrier.live <= barrier.waiting.keys():
            return
        waiting = [barrier.waiting[order] for order in sorted(barrier.waiting)]
        barrier.waiting.clear()
        try:
            for weights in sorted({each.weights for each in waiting}):
                batch = [each for each in waiting if each.weights == weights]
                for start in range(0, len(batch), self.max_batch):
                    self._answer(barrier.pin, batch[start : start + self.max_batch], *weights)
        except Exception as failure:
            # A bug, raised to the last caller; the others must not wait forever.
            self._fail(waiting, failure)
            raise
        finally:
            self._forget_if_none_live(barrier)

    def _forget_if_none_live(self, barrier: _Barrier) -> None:
        """Drop what is held: a rollout's samples must not depend on requests before it."""
        if not barrier.live:
            self._forget(barrier.pin, None)
        if not barrier.live and not barrier.waiting:
            self._barriers.pop(barrier.pin, None)

    def _forget(self, pin: Pin | None, order: int | None) -> None:
        """Drop the prompts of a trajectory, or of all, where they are held."""
        if pin is not None and self.sampler is not None:
            self.sampler.leave(pin, order)
            return
        for prefill in self._prefills.values():
            prefill.prefixes.clear() if order is None else prefill.prefixes.leave(order)

    def _answer(self, pin: Pin | None, batch: Sequence[_Waiting], reference: bool, adapter: str) -> None:
        asked = [(waiting.prompt_ids, waiting.request) for waiting in batch]
        if pin is not None and self.sampler is not None:
            sampling = asyncio.ensure_future(self.sampler.generate(pin, asked, reference, adapter))
            sampling.add_done_callback(lambda done: self._take(pin, batch, done))
            return
        # An adapter has its own: with another, the same tokens have other keys and values.
        prefill = self._prefills[reference, adapter]
        try:
            with self.reference_policy() if reference else nullcontext(self.with_adapter(adapter)) as model:
                completions = generate(
                    model, asked, end_ids=self.codec.end_ids, decode=self.codec.decode, prefill=prefill
                )
        except (RuntimeError, ValueError, IndexError) as failure:
            # Raised here, it would reach one trajectory and leave the others waiting.
            self._fail(batch, failure)
            return
        self._fulfill(batch, completions, self.policy_version)

    def _take(self, pin: Pin, batch: Sequence[_Waiting], done: asyncio.Future[list[Sampled]]) -> None:
        """What the sampler gave, or the error that it raised."""
        failure = asyncio.CancelledError() if done.cancelled() else done.exception()
        if failure is not None:
            self._fail(batch, failure)
        else:
            self._fulfill(batch, done.result(), pin.version)

    def _fulfill(self, batch: Sequence[_Waiting], completions: Sequence[Sampled], version: int) -> None:
        for waiting, sampled in zip(batch, completions, strict=True):
            # Its trajectory was cancelled by a deadline.
            if waiting.future.done():
                continue
            call = self.codec.call_of(waiting.request, waiting.prompt_ids, sampled, policy_version=version)
            waiting.future.set_result(call)

    def _fail(self, batch: Sequence[_Waiting], failure: BaseException) -> None:
        for prefill in self._prefills.values():
            # They may be half written; where memory ran out, it is needed.
            prefill.prefixes.clear()
        for waiting in batch:
            if not waiting.future.done():
                waiting.future.set_exception(self.sampling_failed(len(batch), failure))


class ReferencePolicy(Engine):
    """The reference policy of an engine, behind that engine's barrier: two barriers would wait for each other."""

    token_exact = True

    def __init__(self, engine: TransformersLocal, name: str) -> None:
        self.name, self._engine, self.codec = name, engine, engine.codec

    async def sample(self, request: Request) -> Call:
        """Wait for the engine's next batch."""
        call = await self._engine.sample(request, reference=True)
        return call.model_copy(update={"engine": self.name, "policy_version": 0})
