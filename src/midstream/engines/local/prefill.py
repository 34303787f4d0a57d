"""The first forward pass over a batch of prompts: up to the logits of each one's first new token.

Each distinct prefix is computed once, be it shared by the group, the tasks or the turns, and each request's cache is
gathered from it. Where that saves nothing, and for a model that cannot attend over a trie, the distinct prompts are
padded and computed whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from midstream.core.protocols import Request
from midstream.engines.local.new_tokens import NewTokens
from midstream.engines.local.prefixes import Prefixes, Prompt, joined, selected
from midstream.prefix_tree.attention import Backend
from midstream.prefix_tree.cost import Cost
from midstream.prefix_tree.forward import causal_lm
from midstream.prefix_tree.support import TRIAL, Choice, choose
from midstream.prefix_tree.tree import Ints

TOLERANCE, HALF_TOLERANCE = 1e-3, 0.1  # relative L2 distance of logits
KEEPING = 1.05  # how many times more than padding a trie may cost: it keeps what the next turn begins with

Asked = Sequence[tuple[Prompt, Request]]


@dataclass(kw_only=True, slots=True)
class Prefilled:
    """Where decoding begins for _R requests, their prompts padded on the left to _T tokens.

    `mask` [_R, _T] is 1 where a prompt is, `lengths` [_R] are the prompts' (both int64), `logits` [_R, _V] those of the
    first new token. `computed` is how many tokens the pass ran over, padding included.
    """

    cache: DynamicCache
    mask: torch.Tensor
    lengths: torch.Tensor
    logits: torch.Tensor
    computed: int


class Prefill:
    """An engine's prefill. `prefixes` are what its live trajectories asked last; clear them when there are none."""

    def __init__(self) -> None:
        self.prefixes = Prefixes()
        self._tried: tuple[object, ...] = ()
        self._choice = Choice(None)

    def __call__(self, model: PreTrainedModel, asked: Asked) -> Prefilled:
        """In the way that costs less. Call it in inference mode. It takes no clock: equal batches go the same way."""
        self.prefixes.for_weights_of(model)
        cost = Cost.of(model)
        choice = self._choice_of(model) if cost.counts else Choice(None)
        prompts = list(dict.fromkeys(prompt for prompt, _ in asked))
        longest = max(map(len, prompts))
        if choice.backend is None or longest > choice.longest:
            return padded(model, asked)
        new = NewTokens(prompts, self.prefixes)
        if new.cost(cost, choice.backend) > KEEPING * cost.padded(len(prompts), longest):
            return padded(model, asked)
        return self.by_trie(model, asked, new, choice.backend)

    def _choice_of(self, model: PreTrainedModel) -> Choice:
        """Tried once a model."""
        tried = (model, model.device, model.dtype)
        if tried != self._tried:
            self._tried, self._choice = tried, choice_of(model)
        return self._choice

    def by_trie(self, model: PreTrainedModel, asked: Asked, new: NewTokens, backend: Backend) -> Prefilled:
        """Only the new tokens; then each request's cache from all that is known, which is kept for the next turn."""
        fresh, logits = new.run(model, self.prefixes.layers, backend)
        device = logits.device
        paths, mask = (one.to(device) for one in _left_pad([new.paths[prompt] for prompt, _ in asked]))
        last = {(request.order, request.role): prompt for prompt, request in asked}
        place = torch.from_numpy(self.prefixes.keep(last, new.paths, room=paths.numel())).to(device)
        held, self.prefixes.layers = self.prefixes.layers or [None] * len(fresh), []
        cache = DynamicCache(config=model.config)
        for index in range(len(fresh)):  # a layer at a time: what all of them take is there once
            layer = joined(held[index], fresh[index])
            held[index] = fresh[index] = None  # type: ignore[call-overload]
            key, value = (one[0][:, paths].transpose(0, 1) for one in layer)
            cache.update(key, value, index)
            self.prefixes.layers.append(selected(layer, place))
        expand = torch.tensor(_places(asked), device=device)
        return Prefilled(cache=cache, mask=mask, lengths=mask.sum(1), logits=logits[expand], computed=new.count)


def padded(model: PreTrainedModel, asked: Asked) -> Prefilled:
    """Distinct prompts whole, beside one another."""
    ids, mask = (one.to(model.device) for one in _left_pad(list(dict.fromkeys(prompt for prompt, _ in asked))))
    cache = DynamicCache(config=model.config)
    logits = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]
    expand = torch.tensor(_places(asked), device=model.device)
    cache.batch_select_indices(expand)
    return Prefilled(
        cache=cache, mask=mask[expand], lengths=mask.sum(1)[expand], logits=logits[expand], computed=ids.numel()
    )


def next_logits(
    model: PreTrainedModel, cache: DynamicCache, token: torch.Tensor, mask: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """Logits [_R, _V] after one more `token` [_R] at `position` [_R], which `mask` [_R, _T + 1] counts already."""
    return model(
        input_ids=token[:, None],
        attention_mask=mask,
        position_ids=position[:, None],
        past_key_values=cache,
        use_cache=True,
    ).logits[:, -1]


@torch.inference_mode(False)
def choice_of(model: PreTrainedModel) -> Choice:
    """The back end that a model can attend with, if what it leaves in the cache is what the model itself does."""
    choice = choose(model)
    if choice.backend is None:
        return choice
    try:
        distance = _distance(model, choice.backend)
    except (RuntimeError, IndexError, KeyError, TypeError, ValueError) as error:
        return Choice(None, f"{type(model).__name__} fills its cache in a way of its own: {error}".splitlines()[0])
    half = model.dtype in (torch.bfloat16, torch.float16)
    if distance <= (HALF_TOLERANCE if half else TOLERANCE):
        return choice
    return Choice(None, f"{type(model).__name__} fills its cache in a way of its own")


@torch.inference_mode()
def _distance(model: PreTrainedModel, backend: Backend) -> float:
    """Between logits, by trie and padded, of some prompts and of a token after them; at most of the two."""
    vocabulary = causal_lm(model).get_input_embeddings().weight.shape[0]
    asked = [(tuple(token % vocabulary for token in one), Request(role="trial")) for one in TRIAL]
    new = NewTokens([prompt for prompt, _ in asked], Prefixes())
    found = []
    for way in (Prefill().by_trie(model, asked, new, backend), padded(model, asked)):
        mask = torch.cat([way.mask, way.mask[:, -1:]], 1)
        token = torch.zeros_like(way.lengths)
        found.append(torch.stack([way.logits, next_logits(model, way.cache, token, mask, way.lengths)]).double())
    ours, expected = found
    return float(((ours - expected).norm(dim=(1, 2)) / expected.norm(dim=(1, 2))).max())


def _places(asked: Asked) -> list[int]:
    """Which of the distinct prompts each request has."""
    place: dict[Prompt, int] = {}
    return [place.setdefault(prompt, len(place)) for prompt, _ in asked]


def _left_pad(rows: Sequence[Prompt | Ints]) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, mask), both int64 [rows, longest], padded on the left with 0."""
    longest = max(map(len, rows))
    out = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(out)
    for row, one in enumerate(rows):
        out[row, longest - len(one) :] = torch.as_tensor(one)
        mask[row, longest - len(one) :] = 1
    return out, mask
