"""Token by token: requests that share the forward passes of a model, and join and leave between them.

    cache   . . a a a a     the keys and values of each row, padded on the left to the longest row's `width`
            b b b b b b
            . . . . . c     joined now: after its prefill it is a row like any other

Token t of a request is drawn by inverting its distribution at the t-th uniform number of its own seed. So it depends on
its neighbors through floating point alone: through how sums are rounded in passes of another shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from midstream.core.engine import Request
from midstream.engines.local.prefill import Prefill, next_logits

Decode = Callable[[list[int]], str]
Sampled = tuple[tuple[int, ...], tuple[float, ...]]


@torch.inference_mode()
def generate(
    model: PreTrainedModel,
    prompts: Sequence[tuple[tuple[int, ...], Request]],
    *,
    end_ids: Sequence[int],
    decode: Decode | None = None,
    prefill: Prefill | None = None,
) -> list[Sampled]:
    """Sample one completion a request with a key-value cache. A finished row leaves the batch.

    `decode` gives the text in which stop strings are looked for; `prefill` may know prompts of the batches before.

    Returns per request the completion ids, end token or those of the stop string included where they were drawn, and
    their log-probabilities under the sampling temperature (temperature 1 where sampling is greedy).
    """
    batch = DecodingBatch(model, end_ids=end_ids, decode=decode, prefill=prefill)
    rows = batch.add(prompts)
    while batch.rows:
        batch.step()
    return [row.sampled for row in rows]


@dataclass(eq=False, slots=True)
class DecodingRow:
    """A request, the length of its prompt in tokens, and the tokens drawn so far with their log-probabilities."""

    request: Request
    prompt: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.Generator(np.random.Philox(key=self.request.seed))

    @property
    def sampled(self) -> Sampled:
        """Its ids and log-probabilities."""
        return tuple(self.ids), tuple(self.logprobs)


class DecodingBatch:
    """The `rows` in decoding, _R at a time. Use it in inference mode, and while it has rows with one set of weights.

    `cache` holds `width` tokens a row: the keys and values of a row's prompt and of all tokens drawn but the end.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        end_ids: Sequence[int],
        decode: Decode | None = None,
        prefill: Prefill | None = None,
    ) -> None:
        self._model, self._ends, self._prefill = model, frozenset(end_ids), prefill or Prefill()
        self._stops = None if decode is None else _Stops(decode)
        self.rows: list[DecodingRow] = []
        self.width = 0
        self.cache = DynamicCache()
        # Of each row: the logits of its next token [_R, _V], its tokens in the cache [_R], temperature and top_p [_R].
        self._of_rows: tuple[torch.Tensor, ...] = ()

    def add(self, prompts: Sequence[tuple[tuple[int, ...], Request]]) -> list[DecodingRow]:
        """Compute the prompts and add a row for each; returns the rows, which fill as tokens are drawn."""
        start = self._prefill(self._model, prompts)
        sampling = [request.sampling for _, request in prompts]
        temperature, top_p = (
            torch.tensor(values, device=start.logits.device)
            for values in ([one.temperature for one in sampling], [one.top_p for one in sampling])
        )
        new = (start.logits, start.lengths, temperature, top_p)
        if self.rows:
            _join(self.cache, start.cache)
            self._of_rows = tuple(torch.cat(both) for both in zip(self._of_rows, new, strict=True))
        else:
            self.cache, self._of_rows, self.width = start.cache, new, 0
        self.width = max(self.width, start.mask.shape[1])
        rows = [DecodingRow(request, len(prompt)) for prompt, request in prompts]
        self.rows += rows
        return rows

    def step(self) -> list[DecodingRow]:
        """Draw a token for each row; returns those that ended, which have left the batch."""
        logits, position, temperature, top_p = self._of_rows
        uniform = torch.tensor([row.random.random() for row in self.rows], dtype=torch.float64, device=logits.device)
        token, logprob = _draw(logits, temperature, top_p, uniform)
        for row, drawn, value in zip(self.rows, token.tolist(), logprob.tolist(), strict=True):
            row.ids.append(drawn)
            row.logprobs.append(value)
        self._of_rows = (token, position, temperature, top_p)
        left = [
            row
            for row in self.rows
            if row.ids[-1] in self._ends
            or len(row.ids) == row.request.sampling.max_tokens
            or (self._stops is not None and self._stops.end(row))
        ]
        if left:
            self.keep([place for place, row in enumerate(self.rows) if row not in left])
        if not self.rows:
            return left
        token, position, temperature, top_p = self._of_rows
        self.width += 1
        column = torch.arange(self.width, device=position.device)
        # The new token is in it already.
        mask = (column >= self.width - 1 - position[:, None]).long()
        logits = next_logits(self._model, self.cache, token, mask, position)
        self._of_rows = (logits, position + 1, temperature, top_p)
        return left

    def keep(self, places: Sequence[int]) -> None:
        """Let all rows but those at `places` leave."""
        if not places:
            self.clear()
            return
        index = torch.tensor(places, dtype=torch.long, device=self._model.device)
        self.rows = [self.rows[place] for place in places]
        self._of_rows = tuple(tensor[index] for tensor in self._of_rows)
        self.cache.batch_select_indices(index)

    def clear(self) -> None:
        """Let all rows leave."""
        self.rows, self._of_rows, self.cache, self.width = [], (), DynamicCache(), 0

    def trim(self) -> None:
        """Cut off the padding that all rows share."""
        width = max((row.prompt + len(row.ids) for row in self.rows), default=0)
        if width < self.width:
            self.width = width
            for layer in _filled_slots(self.cache):
                # A copy: a view would keep the whole until the next token.
                layer.keys, layer.values = (kept[:, :, -width:].clone() for kept in (layer.keys, layer.values))
                if isinstance(layer, DynamicSlidingWindowLayer):
                    layer.cumulative_length = width


def can_join(model: PreTrainedModel) -> bool:
    """Whether rows of its cache can be padded and cut: each layer holds keys and values of tokens, and nothing else."""
    layers = DynamicCache(config=model.config).layers
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


def _filled_slots(cache: DynamicCache) -> list[Any]:
    layers: list[Any] = cache.layers
    return [layer for layer in layers if layer.is_initialized]


def _join(cache: DynamicCache, new: DynamicCache) -> None:
    """Add the rows of `new`, a layer at a time; the shorter of both is padded on the left.

    A layer with a sliding window of _W holds the last _W - 1 tokens of the batch's width: less than the window pads it.
    """
    for layer, other in zip(_filled_slots(cache), _filled_slots(new), strict=True):
        width = max(layer.keys.shape[2], other.keys.shape[2])
        for name in ("keys", "values"):
            both = [getattr(one, name) for one in (layer, other)]
            setattr(layer, name, torch.cat([torch.nn.functional.pad(t, (0, 0, width - t.shape[2], 0)) for t in both]))
            setattr(other, name, None)
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.cumulative_length = max(layer.cumulative_length, other.cumulative_length)


class _Stops:
    """Finds stop strings as tokens come, across tokens and inside of one.

    A token alone nearly always shows that it ends none: decoding the text before it would take as long as a small
    model's forward pass.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._may_end: dict[tuple[tuple[str, ...], int], bool] = {}

    def end(self, row: DecodingRow) -> bool:
        """Whether the newest of a row's tokens ends one of its stop strings."""
        stops, token = row.request.sampling.stop, row.ids[-1]
        if not stops:
            return False
        # Alone, a token may lose its spaces, or be a part of a character.
        if (stops, token) not in self._may_end:
            text, ends = self._decode([token]), [stop[-1:] for stop in stops]
            self._may_end[stops, token] = not text or any(end in text or end.isspace() for end in (*ends, "\ufffd"))
        if not self._may_end[stops, token]:
            return False
        # A character is at most four tokens.
        text = self._decode(row.ids[-4 * max(map(len, stops)) - 1 :])
        return any(stop in text for stop in stops)


def _draw(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(token [_R], its log-probability [_R]) from logits [_R, _V]; the others are [_R]."""
    greedy = temperature == 0
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    logprobs = (logits / torch.where(greedy, 1.0, temperature)[:, None]).log_softmax(-1)
    probabilities = logprobs.exp()
    if not bool((top_p >= 1).all()):
        # The smallest set of most likely tokens whose probability reaches `top_p`; all others get 0.
        ordered, index = probabilities.sort(-1, descending=True)
        ordered = torch.where(ordered.cumsum(-1) - ordered < top_p[:, None], ordered, 0.0)
        probabilities = torch.zeros_like(probabilities).scatter(-1, index, ordered)
    cumulative = probabilities.double().cumsum(-1)
    target = uniform * cumulative[:, -1]
    drawn = torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    token = torch.where(greedy, logits.argmax(-1), drawn)
    return token, logprobs.gather(1, token[:, None])[:, 0]
