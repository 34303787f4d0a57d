"""Any Hugging Face causal language model, sampled in process behind a barrier.

A batch is drawn when every live trajectory waits, sorted by the trajectory's place in its rollout: neither tool
latency nor the order of completion changes a bit of the result. Each request draws from its own seed. What was
sampled is recorded as token ids with log-probabilities, so its calls can be trained on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from midstream.core.errors import EngineError, PromptTooLongError, UnsupportedError
from midstream.core.protocols import Engine, Request
from midstream.core.trajectory import Call, Usage
from midstream.engines.local.codec import TokenizerCodec
from midstream.engines.local.prefill import Prefill, next_logits


@dataclass(frozen=True, kw_only=True, slots=True)
class _Waiting:
    request: Request
    prompt_ids: tuple[int, ...]
    future: asyncio.Future[Call]
    reference: bool


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
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.name, self.max_batch = model, name, max_batch
        self.tokenizer: Any = tokenizer  # its stubs allow for batches everywhere
        # Both the tokenizer and the model's generation settings may name tokens that end a completion.
        configured = getattr(model.generation_config, "eos_token_id", None)
        ends = (self.tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured]))
        end_ids = tuple(dict.fromkeys(int(token) for token in ends if token is not None))
        self.codec = TokenizerCodec(tokenizer, name, chat_template_kwargs, end_ids=end_ids)
        self.policy_version = 0
        self._live: set[int] = set()
        self._waiting: dict[int, _Waiting] = {}
        # Gives the reference policy while its context lasts. Without a learner it is the model itself.
        self.reference_policy: Callable[[], AbstractContextManager[PreTrainedModel]] = lambda: nullcontext(self.model)
        self._prefills = Prefill(), Prefill()  # of the policy, of the reference policy

    def join(self, order: int) -> None:
        """Wait for the trajectory at place `order` before sampling."""
        self._live.add(order)

    def leave(self, order: int) -> None:
        """Wait for it no longer; the others may be ready now."""
        self._live.discard(order)
        for prefill in self._prefills:
            prefill.prefixes.leave(order)
        self._sample_if_all_wait()
        self._forget_if_none_live()

    async def sample(self, request: Request, *, reference: bool = False) -> Call:
        """Queue the request and wait for the batch that answers it; `reference` asks the reference policy."""
        prompt_ids = tuple(self.codec.encode(request))
        # What the model cannot compute is refused before it gets among the requests of others.
        if not prompt_ids:
            raise EngineError(
                f"{self.name} was asked to continue a prompt of no tokens",
                code="empty-prompt",
                cause="the task's question and what the agent puts around it are empty",
                fix="put something into the prompt",
            )
        limit = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        max_tokens = request.sampling.max_tokens
        if limit is not None and len(prompt_ids) + max_tokens > limit:
            raise PromptTooLongError(
                f"a prompt of {len(prompt_ids)} tokens and {max_tokens} new ones do not fit",
                code="prompt-too-long",
                cause=f"{self.name} has {limit} positions",
                fix="lower max_tokens or the number of turns, or use a model with a longer context",
            )
        if request.order in self._waiting:
            raise UnsupportedError(
                f"trajectory {request.order} asked {self.name} twice at once",
                code="engine-busy",
                cause="the in-process engine answers one request a trajectory at a time, and one rollout at a time",
                fix="await a trajectory's requests one after the other, and rollouts too",
            )
        future: asyncio.Future[Call] = asyncio.get_running_loop().create_future()
        self._waiting[request.order] = _Waiting(
            request=request, prompt_ids=prompt_ids, future=future, reference=reference
        )
        try:
            self._sample_if_all_wait()
            return await future
        finally:
            self._waiting.pop(request.order, None)

    def _sample_if_all_wait(self) -> None:
        """Answer every waiting request once no live trajectory is elsewhere."""
        if not self._waiting or not self._live <= self._waiting.keys():
            return
        waiting = [self._waiting[order] for order in sorted(self._waiting)]
        self._waiting.clear()
        try:
            for asked in (False, True):
                batch = [each for each in waiting if each.reference is asked]
                for start in range(0, len(batch), self.max_batch):
                    self._answer(batch[start : start + self.max_batch], reference=asked)
        except Exception as failure:  # a bug, raised to the last caller; the others must not wait forever
            self._fail(waiting, failure)
            raise
        finally:
            self._forget_if_none_live()

    def _forget_if_none_live(self) -> None:
        """Drop what is held: a rollout's samples must not depend on requests before it."""
        for prefill in self._prefills if not self._live else ():
            prefill.prefixes.clear()

    def _answer(self, batch: Sequence[_Waiting], *, reference: bool) -> None:
        prefill = self._prefills[reference]
        try:
            asked = [(waiting.prompt_ids, waiting.request) for waiting in batch]
            with self.reference_policy() if reference else nullcontext(self.model) as model:
                sampled = generate(model, asked, end_ids=self.codec.end_ids, decode=self.codec.decode, prefill=prefill)
        except (RuntimeError, ValueError, IndexError) as failure:
            self._fail(batch, failure)  # raised here, it would reach one trajectory and leave the others waiting
            return
        for waiting, (ids, logprobs) in zip(batch, sampled, strict=True):
            if waiting.future.done():  # its trajectory was cancelled by a deadline
                continue
            request, whole = waiting.request, self.codec.decode(ids)
            # The text up to the first stop string in it.
            places = [place for stop in request.sampling.stop if (place := whole.find(stop)) >= 0]
            text = whole[: min(places, default=len(whole))]
            stopped = ids[-1] in self.codec.end_ids or text != whole
            waiting.future.set_result(
                request.answered(
                    self.name,
                    whole if request.keep_stop else text,
                    prompt_ids=waiting.prompt_ids,
                    completion_ids=ids,
                    logprobs=logprobs,
                    policy_version=self.policy_version,
                    finish_reason="stop" if stopped else "length",
                    usage=Usage(prompt_tokens=len(waiting.prompt_ids), completion_tokens=len(ids)),
                )
            )

    def _fail(self, batch: Sequence[_Waiting], failure: Exception) -> None:
        for prefill in self._prefills:
            prefill.prefixes.clear()  # they may be half written; where memory ran out, it is needed
        for waiting in batch:
            if not waiting.future.done():
                error = EngineError(
                    f"{self.name} could not sample {len(batch)} completions: {failure}",
                    code="sampling-failed",
                    cause="the device is out of memory, or the model and its tokenizer do not fit",
                    fix="lower max_batch or max_tokens",
                )
                error.__cause__ = failure
                waiting.future.set_exception(error)


class ReferencePolicy(Engine):
    """The reference policy of an engine, behind that engine's barrier: two barriers would wait for each other."""

    token_exact = True

    def __init__(self, engine: TransformersLocal, name: str) -> None:
        self.name, self._engine = name, engine

    async def sample(self, request: Request) -> Call:
        """Wait for the engine's next batch."""
        call = await self._engine.sample(request, reference=True)
        return call.model_copy(update={"engine": self.name, "policy_version": 0})


Sampled = tuple[tuple[int, ...], tuple[float, ...]]


@torch.inference_mode()
def generate(
    model: PreTrainedModel,
    prompts: Sequence[tuple[tuple[int, ...], Request]],
    *,
    end_ids: Sequence[int],
    decode: Callable[[list[int]], str] | None = None,
    prefill: Prefill | None = None,
) -> list[Sampled]:
    """Sample one completion a request with a key-value cache.

    A finished row leaves the batch. Token t of a request is drawn by inverting its distribution at the t-th uniform
    number of its own seed, so it does not depend on its neighbors' draws. `decode` gives the text in which stop strings
    are looked for; `prefill` may know prompts of the batches before.

    Returns per request the completion ids, end token or those of the stop string included where they were drawn, and
    their log-probabilities under the sampling temperature (temperature 1 where sampling is greedy).
    """
    start = (prefill or Prefill())(model, prompts)
    device, cache, mask, position, logits = model.device, start.cache, start.mask, start.lengths, start.logits
    draws = _Draws([request for _, request in prompts], device)
    rows = torch.arange(len(prompts), device=device)
    ends = torch.tensor(end_ids, device=device)
    stops = None if decode is None else _Stops([request.sampling.stop for _, request in prompts], decode)
    out: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    for step in range(draws.longest):
        token, logprob = draws.draw(logits, rows, step)
        for row, drawn, value in zip(rows.tolist(), token.tolist(), logprob.tolist(), strict=True):
            out[row][0].append(drawn)
            out[row][1].append(value)
        keep = ~torch.isin(token, ends) & (draws.limits[rows] > step + 1)
        if stops is not None:
            ended = [stops.ends(row, out[row][0]) for row in rows.tolist()]
            keep &= ~torch.tensor(ended, device=device)
        if not keep.any():
            break
        if not keep.all():
            kept = keep.nonzero()[:, 0]
            rows, mask, position, token = rows[kept], mask[kept], position[kept], token[kept]
            cache.batch_select_indices(kept)
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
        logits = next_logits(model, cache, token, mask, position)
        position = position + 1
    return [(tuple(ids), tuple(logprobs)) for ids, logprobs in out]


class _Stops:
    """Finds stop strings as tokens come, across tokens and inside of one.

    A token alone nearly always shows that it ends none: decoding the text before it would take as long as a small
    model's forward pass.
    """

    def __init__(self, stops: Sequence[Sequence[str]], decode: Callable[[list[int]], str]) -> None:
        self._stops, self._decode = stops, decode
        self._ends = {stop[-1] for each in stops for stop in each if stop}
        self._may_end: dict[int, bool] = {}

    def ends(self, row: int, ids: list[int]) -> bool:
        """Whether the newest of a row's tokens ends one of its stop strings."""
        stops, token = self._stops[row], ids[-1]
        if stops and token not in self._may_end:  # alone, a token may lose its spaces, or be a part of a character
            text = self._decode([token])
            self._may_end[token] = not text or any(end in text or end.isspace() for end in (*self._ends, "\ufffd"))
        if not stops or not self._may_end[token]:
            return False
        text = self._decode(ids[-4 * max(map(len, stops)) - 1 :])  # a character is at most four tokens
        return any(stop in text for stop in stops)


class _Draws:
    """The random numbers and temperatures of a batch of requests."""

    def __init__(self, requests: Sequence[Request], device: torch.device) -> None:
        self.limits = torch.tensor([request.sampling.max_tokens for request in requests], device=device)
        self.longest = int(self.limits.max())
        self.temperatures = torch.tensor([request.sampling.temperature for request in requests], device=device)
        self.top_p = torch.tensor([request.sampling.top_p for request in requests], device=device)
        generators = (np.random.Generator(np.random.Philox(key=request.seed)) for request in requests)
        uniforms = np.stack([generator.random(self.longest) for generator in generators])
        self.uniforms = torch.from_numpy(uniforms).to(device)

    def draw(self, logits: torch.Tensor, rows: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(token [rows], its log-probability [rows]) from logits [rows, _V]."""
        temperature = self.temperatures[rows]
        greedy = temperature == 0
        scaled = logits.float() / torch.where(greedy, 1.0, temperature)[:, None]
        logprobs = scaled.log_softmax(-1)
        probabilities = _nucleus(logprobs.exp(), self.top_p[rows])
        cumulative = probabilities.double().cumsum(-1)
        target = self.uniforms[rows, step] * cumulative[:, -1]
        drawn = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
        token = torch.where(greedy, logits.argmax(-1), drawn)
        return token, logprobs.gather(1, token[:, None])[:, 0]


def _nucleus(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keep the smallest set of most likely tokens whose probability reaches `top_p` [rows]; zero the others."""
    if bool((top_p >= 1).all()):
        return probabilities
    ordered, index = probabilities.sort(-1, descending=True)
    ordered = torch.where(ordered.cumsum(-1) - ordered < top_p[:, None], ordered, 0.0)
    return torch.zeros_like(probabilities).scatter(-1, index, ordered)
